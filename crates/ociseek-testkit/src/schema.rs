//! Checks documents against the JSON Schemas in `docs/schema`, with the few keywords that they use.

use ociseek_format::digest::Digest;
use serde_json::Value;

/// Panics with the fault of `document`, which `ociseek ARGS` printed.
pub fn check(args: &[&str], document: &Value) {
    let has = |option: &str| {
        args.iter().any(|arg| *arg == option || arg.starts_with(&format!("{option}=")))
    };
    let name = match (args[0], args.get(1)) {
        _ if document.get("error").is_some() && document.get("status").is_none() => "error",
        ("ls", _) if has("--layer") => "ls-layer",
        ("ztoc", Some(&verb)) => match verb {
            "show" => "ztoc-show",
            verb => {
                assert_eq!(verb, "verify");
                "ztoc-verify"
            }
        },
        ("bundle", _) => "mount",
        ("doctor", _) if has("--node") => "doctor-node",
        ("store", Some(&"status")) => "store-status",
        ("rm", Some(&"--obsolete")) => "rm-obsolete",
        (verb, _) => verb,
    };
    let path = crate::project().join(format!("docs/schema/{name}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let schema: Value = serde_json::from_str(&text).unwrap();
    if let Err(wrong) = matches(&schema, &schema, document, "") {
        panic!(
            "ociseek {args:?} prints what docs/schema/{name}.json does not describe: {wrong}\n{document:#}"
        );
    }
}

fn matches(root: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let Some(keywords) = schema.as_object() else { return Ok(()) };
    let wrong = |why: String| Err(format!("{place}: {why}"));
    for (keyword, wanted) in keywords {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" | "required" => {}
            "$ref" => {
                let target = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                matches(root, root.pointer(target).expect("is defined"), value, place)?;
            }
            "type" => {
                let types: Vec<&Value> =
                    wanted.as_array().map_or(vec![wanted], |types| types.iter().collect());
                if !types.iter().any(|wanted| is(value, wanted.as_str().unwrap())) {
                    return wrong(format!("want {wanted}"));
                }
            }
            "const" if value == wanted => {}
            "enum" if wanted.as_array().unwrap().contains(value) => {}
            "const" | "enum" => return wrong(format!("want {wanted}")),
            "minimum" if value.as_f64().is_some_and(|number| number < wanted.as_f64().unwrap()) => {
                return wrong(format!("less than {wanted}"));
            }
            "maximum" if value.as_f64().is_some_and(|number| number > wanted.as_f64().unwrap()) => {
                return wrong(format!("more than {wanted}"));
            }
            "minimum" | "maximum" => {}
            // There is only one pattern: that of digests.
            "pattern" => {
                assert_eq!(wanted, "^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$");
                if value.as_str().is_none_or(|text| text.parse::<Digest>().is_err()) {
                    return wrong("want a digest".to_owned());
                }
            }
            "anyOf" | "oneOf" => {
                let results: Vec<_> = wanted
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| matches(root, one, value, place))
                    .collect();
                if results.iter().all(Result::is_err) {
                    return wrong(format!("fits none of: {results:?}"));
                }
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    matches(root, wanted, item, &format!("{place}/{number}"))?;
                }
            }
            "properties" => {
                let Some(object) = value.as_object() else { continue };
                for name in
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
                {
                    if !object.contains_key(name) {
                        return wrong(format!("{name} is missing"));
                    }
                }
                for (name, value) in object {
                    match wanted.get(name) {
                        Some(schema) => matches(root, schema, value, &format!("{place}/{name}"))?,
                        // Readers must accept new fields, but the schemas must describe all of
                        // them.
                        None => return wrong(format!("{name} is not described")),
                    }
                }
            }
            other => panic!("{other} is a keyword that this check does not know"),
        }
    }
    Ok(())
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is not a type"),
    }
}
