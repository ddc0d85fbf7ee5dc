//! `index_layer LAYER ZTOC`: reads a layer's blob once, writes its ztoc to a file, and says what is
//! in it.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek_format::offset::SpanSize;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layer, output] = &arguments[..] else { return Err("index_layer LAYER ZTOC".into()) };
    println!("{}", index_layer(layer.as_ref(), output.as_ref())?);
    Ok(())
}

/// Indexes the layer; a line says what its ztoc holds.
pub fn index_layer(layer: &Path, output: &Path) -> Result<String, Box<dyn Error>> {
    let options = LayerOptions {
        span_size: SpanSize::DEFAULT,
        build_tool_identifier: "index_layer".to_owned(),
        fine: false,
    };
    let mut indexer = LayerIndexer::new(options, None);
    let mut blob = File::open(layer)?;
    let mut chunk = vec![0; 256 << 10];
    loop {
        match blob.read(&mut chunk)? {
            0 => break,
            size => indexer.push(&chunk[..size])?,
        }
    }
    let layer = indexer.finish()?;
    match layer.outcome {
        Outcome::Ztoc(ztoc) => {
            std::fs::write(output, &ztoc.bytes)?;
            Ok(format!(
                "{}: {} entries in {} spans, {}",
                layer.digest, ztoc.entries, ztoc.spans, ztoc.digest
            ))
        }
        Outcome::Unservable(why) => Err(format!("{}: {why}", why.code).into()),
    }
}
