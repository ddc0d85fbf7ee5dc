//! Generates the JSON Schemas of all documents from their types: `docs/schema`, and the tables of
//! `docs/json.md`.
//!
//! `UPDATE_SCHEMA=1 cargo test --lib cli::schema` writes both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::cli::shared::json::{Document, Failed};
use crate::cli::{
    backfill, cache, convert, doctor, image_fs, index, list, ls, obsolete, rm, snapshotter, trial,
    verify, version, ztoc,
};

/// The start of the tables in docs/json.md.
const GENERATED: &str = "<!-- From here on: UPDATE_SCHEMA=1 cargo test --lib cli::schema -->\n";

fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Document<T>>();
    schema.remove("title");
    let mut schema = schema.to_value();
    unwrap_descriptions(&mut schema);
    schema
}

/// Joins the lines of each description: the width of comments does not matter to a schema.
fn unwrap_descriptions(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    other => unwrap_descriptions(other),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(unwrap_descriptions),
        _ => {}
    }
}

/// The name of each file, the command that prints the document, and the schema.
fn all() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("try", "ociseek try", of::<trial::json::Trial>()),
        ("index", "ociseek index", of::<index::json::Indexing>()),
        ("convert", "ociseek convert", of::<convert::json::Conversion>()),
        ("backfill", "ociseek backfill (each line)", of::<backfill::output::Line>()),
        ("ztoc-show", "ociseek ztoc show", of::<ztoc::json::Contents>()),
        ("ztoc-verify", "ociseek ztoc verify", of::<ztoc::layer::Proven>()),
        ("ls", "ociseek ls", of::<ls::json::Files>()),
        ("ls-layer", "ociseek ls --layer", of::<ls::json::LayerFiles>()),
        ("verify", "ociseek verify", of::<verify::json::Verification>()),
        ("doctor", "ociseek doctor", of::<doctor::json::Report>()),
        ("doctor-node", "ociseek doctor --node", of::<snapshotter::doctor::NodeReport>()),
        ("list", "ociseek list", of::<list::Listing>()),
        ("rm", "ociseek rm", of::<rm::RemovalJson>()),
        ("rm-obsolete", "ociseek rm --obsolete", of::<obsolete::Obsolete>()),
        ("cache", "ociseek cache ls, ociseek cache clear", of::<cache::Caches>()),
        ("mount", "ociseek mount, ociseek bundle", of::<image_fs::json::Ready>()),
        (
            "stats",
            "ociseek mount --stats-file, ociseek bundle --stats-file",
            of::<image_fs::json::Stats>(),
        ),
        ("snapshotter-status", "ociseek snapshotter status", of::<snapshotter::status::Status>()),
        ("store-status", "ociseek store status", of::<image_fs::store_status::StoreStatus>()),
        ("snapshotter-images", "ociseek snapshotter images", of::<snapshotter::status::Images>()),
        ("version", "ociseek version", of::<version::Version>()),
        ("error", "any command that fails before it prints its own document", of::<Failed>()),
    ]
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

#[test]
fn published_schemas_match_the_types() {
    let update = std::env::var_os("UPDATE_SCHEMA").is_some();
    let hint = "differs from what the types say: look at it, then UPDATE_SCHEMA=1 cargo test --lib cli::schema";
    let dir = docs().join("schema");
    if update {
        std::fs::create_dir_all(&dir).unwrap();
    }
    let mut expected = Vec::new();
    for (name, _, schema) in all() {
        let path = dir.join(format!("{name}.json"));
        let text = format!("{schema:#}\n");
        if update {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&path).unwrap_or_default(),
            text,
            "{} {hint}",
            path.display()
        );
        expected.push(path);
    }
    for file in std::fs::read_dir(&dir).unwrap() {
        let file = file.unwrap().path();
        assert!(expected.contains(&file), "{} is of no document", file.display());
    }
    let path = docs().join("json.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (by_hand, _) = page.split_once(GENERATED).expect("the page says where the tables begin");
    let text = format!("{by_hand}{GENERATED}{}", tables());
    if update {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{} {hint}", path.display());
}

/// The functions that return stable words contain no other text in quotes.
#[test]
fn the_page_lists_every_stable_word() {
    let page = std::fs::read_to_string(docs().join("json.md")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    const FUNCTIONS: [&str; 2] = ["pub fn code(", "pub fn word("];
    let mut words = 0;
    let mut check = |place: &str, word: &str| {
        words += 1;
        assert!(page.contains(&format!("`{word}`")), "{place}: docs/json.md does not list {word}");
    };
    for file in [
        "crates/ociseek-format/src/image/consumer.rs",
        "crates/ociseek-ops/src/doctor/finding.rs",
        "crates/ociseek-ops/src/discover/mod.rs",
        "crates/ociseek-ops/src/index/model.rs",
        "crates/ociseek-hook/src/backfill/mod.rs",
        "crates/ociseek-hook/src/job.rs",
        "crates/ociseek-hook/src/skip.rs",
        "crates/ociseek-format/src/image/mod.rs",
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let functions: Vec<&str> =
            FUNCTIONS.iter().flat_map(|name| text.split(name).skip(1)).collect();
        assert!(!functions.is_empty(), "{file}");
        for function in functions {
            let body = function.split("\n    }").next().unwrap();
            body.split('"').skip(1).step_by(2).for_each(|word| check(file, word));
        }
    }
    ociseek_format::layer::UnservableCode::ALL
        .iter()
        .for_each(|code| check("UnservableCode", code.word()));
    assert!(words >= 90, "{words}");
}

/// A section for each document, and one for shared objects.
fn tables() -> String {
    let documents = all();
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for (_, _, schema) in &documents {
        for (name, definition) in definitions(schema) {
            *uses.entry(format!("{name} {definition}")).or_default() += 1;
        }
    }
    let is_shared = |name: &str, definition: &Value| {
        uses.get(&format!("{name} {definition}")).is_some_and(|n| *n > 1)
    };
    let mut text = String::new();
    let mut shared = BTreeMap::new();
    for (name, printed_by, schema) in &documents {
        let _ = write!(text, "\n## {printed_by}\n\n[Schema](schema/{name}.json)\n\n");
        text.push_str(&table(schema, schema));
        for (name, definition) in
            definitions(schema).filter(|(_, definition)| definition.get("properties").is_some())
        {
            if is_shared(name, definition) {
                shared.insert(name.clone(), (definition.clone(), schema.clone()));
            } else {
                let _ = write!(
                    text,
                    "\n{}\n\n{}",
                    heading(name, definition),
                    table(definition, schema)
                );
            }
        }
    }
    text.push_str("\n## Objects that several documents have\n");
    for (name, (definition, schema)) in shared {
        let _ =
            write!(text, "\n{}\n\n{}", heading(&name, &definition), table(&definition, &schema));
    }
    text
}

fn heading(name: &str, definition: &Value) -> String {
    let about = definition["description"]
        .as_str()
        .map(|about| format!(" {}", plain(about)))
        .unwrap_or_default();
    format!("**{name}:**{about}")
}

fn definitions(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("$defs").and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The fields of an object in `root`.
fn table(object: &Value, root: &Value) -> String {
    let mut text = "| field | type | |\n|---|---|---|\n".to_owned();
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (field, schema) in object["properties"].as_object().into_iter().flat_map(Map::iter) {
        let about = schema["description"].as_str().map(plain).unwrap_or_default();
        let optional = if required.contains(&field.as_str()) { "" } else { "May be missing." };
        let words = words(schema, root).join("; ");
        let words = if words.is_empty() { words } else { words + "." };
        let parts = [about.as_str(), &words, optional].into_iter().filter(|part| !part.is_empty());
        let about = parts.collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "| `{field}` | {} | {about} |", kind(schema, root));
    }
    text
}

/// The words of an enumeration with their meanings. Empty for other values.
fn words(schema: &Value, root: &Value) -> Vec<String> {
    let said = |word: &Value| format!("`{}`", word.as_str().unwrap_or_default());
    if let Some(name) = schema["$ref"].as_str() {
        let definition = root.pointer(name.trim_start_matches('#')).unwrap_or(&Value::Null);
        return if definition.get("properties").is_some() {
            Vec::new()
        } else {
            words(definition, root)
        };
    }
    if let Some(word) = schema.get("const") {
        let about = schema["description"]
            .as_str()
            .map(|about| format!(" ({})", plain(about.trim_end_matches('.'))));
        return vec![said(word) + &about.unwrap_or_default()];
    }
    let own = schema["enum"].as_array().into_iter().flatten().map(said);
    let options = ["anyOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten();
    own.chain(options.flat_map(|option| words(option, root))).collect()
}

/// The type of a value in words.
fn kind(schema: &Value, root: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return if words(schema, root).is_empty() { name.to_owned() } else { "string".to_owned() };
    }
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().map(|option| kind(option, root)).collect::<Vec<_>>().join(" or ");
    }
    if schema["type"] == "array" {
        return format!("array of {}", kind(&schema["items"], root));
    }
    match &schema["type"] {
        Value::Array(types) => {
            let one = |kind: &Value| match kind.as_str().unwrap_or_default() {
                "array" => format!("array of {}", self::kind(&schema["items"], root)),
                kind => kind.to_owned(),
            };
            types.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        one => one.as_str().unwrap_or_default().to_owned(),
    }
}

fn plain(about: &str) -> String {
    about.replace('\n', " ").replace('|', "\\|")
}
