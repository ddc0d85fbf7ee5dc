//! `read_file LAYER ZTOC PATH`: prints a file of a layer, and reads no more of the blob than the
//! spans that hold it.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layer, index, path] = &arguments[..] else {
        return Err("read_file LAYER ZTOC PATH".into());
    };
    read_file(layer.as_ref(), index.as_ref(), path, &mut std::io::stdout())
}

/// Writes the content of a file to `output`.
pub fn read_file(
    layer: &Path,
    index: &Path,
    path: &str,
    output: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let spans = SpanTable::new(Arc::new(ztoc::decode(&std::fs::read(index)?)?))?;
    let file = spans
        .ztoc()
        .files
        .iter()
        .find(|file| *file.name == *path.as_bytes())
        .ok_or("no such file")?;
    let wanted = file.offset..file.offset + file.size;
    let mut blob = File::open(layer)?;
    for span in SpanId::each(spans.covering(wanted.clone())) {
        let range = spans.blob_range(span);
        let mut compressed = Vec::new();
        blob.seek(SeekFrom::Start(range.start.0))?;
        (&blob).take(range.end - range.start).read_to_end(&mut compressed)?;
        // The digest is checked before anything is decoded.
        let mut plain = Vec::new();
        spans.decode(span, &compressed, &mut |piece| {
            plain.extend_from_slice(piece);
            ControlFlow::Continue(())
        })?;
        let held = spans.plain_range(span);
        let from = wanted.start.max(held.start) - held.start;
        let to = wanted.end.min(held.end) - held.start;
        output.write_all(&plain[from as usize..to as usize])?;
    }
    Ok(())
}
