//! Jobs with the keys of the project's, for images by tag, digest or both.

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Job {
    pub image: Reference,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Image,
    Tag,
}

impl Job {
    pub fn new(repository: &str, tag: Option<&str>, digest: Option<&str>) -> Job {
        let [tag, digest] = [tag, digest].map(|part| part.map(str::to_owned));
        Job {
            image: Reference { registry: "r".into(), repository: repository.into(), tag, digest },
        }
    }

    pub fn key(&self, unit: Unit) -> String {
        match (&self.image.tag, &self.image.digest, unit) {
            (Some(tag), Some(_), Unit::Tag) => format!("{}:{tag}", self.image_key()),
            _ => self.image_key(),
        }
    }

    pub fn image_key(&self) -> String {
        let Reference { registry, repository, tag, digest } = &self.image;
        let target = digest.as_ref().or(tag.as_ref()).expect("an image has a tag or a digest");
        format!("{registry}/{repository}@{target}")
    }

    pub fn stays_done(&self, unit: Unit) -> bool {
        self.image.digest.is_some() && (unit == Unit::Image || self.image.tag.is_none())
    }
}
