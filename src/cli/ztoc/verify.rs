//! `ociseek ztoc verify`.

use std::sync::Arc;

use serde::Serialize;

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::difference::{self, DifferenceJson, Status};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, text as text_of};
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Stdout, safe};
use crate::cli::ztoc::{ZtocVerifyArgs, open, read_ztoc_bytes, unreadable};
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::layer::prove::{Difference, LayerProof, Proof};
use ociseek_format::ztoc::{Ztoc, decode};
use ociseek_store::Buffers;

/// Verifies the ztoc. Fails with [`CliError::Differs`] if differences were found and printed.
pub(crate) fn run(args: &ZtocVerifyArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let bytes = read_ztoc_bytes(&args.ztoc)?;
    let (ztoc, malformed) = match decode(&bytes) {
        Ok(ztoc) => (Some(Arc::new(ztoc)), None),
        Err(error) => (None, Some(Difference::Malformed(error))),
    };
    let mut layer = open(&args.layer)?;
    let buffers = Buffers::default();
    let proof = LayerProof::new(ztoc.clone(), Algorithm::Sha256, Algorithm::Sha256);
    let mut proof = proof
        .read(|| buffers.read_chunk(&mut layer).map(|chunk| (!chunk.is_empty()).then_some(vec![chunk])))
        .map_err(|source| unreadable(&args.layer, source))?;
    proof.differences.extend(malformed);
    let text = match args.format.get() {
        OutputFormat::Text => text(ztoc.as_deref(), &proof),
        OutputFormat::Json => text_of(Proven::of(&bytes, ztoc.as_deref(), &proof))?,
    };
    stdout.print(text)?;
    if proof.holds() { Ok(()) } else { Err(CliError::Differs) }
}

fn text(ztoc: Option<&Ztoc>, proof: &Proof) -> String {
    let found = difference::shown(proof.differences.iter().map(|one| (one.code().word(), one.to_string())));
    let differences: String = found.iter().map(|(_, text)| format!("{}\n", safe(text))).collect();
    if let Some(ztoc) = ztoc.filter(|_| proof.holds()) {
        let (spans, entries) = (ztoc.checkpoints.spans(), ztoc.files.len() as u64);
        let what = [counted(spans, "span", "spans"), counted(entries, "entry", "entries")].join(", ");
        return format!("the ztoc is correct: {what}, {} compared\n", human(proof.compared));
    }
    let count = proof.differences.len() as u64 + proof.more;
    if let Some(ztoc) = ztoc.filter(|ztoc| is_of_another_layer(ztoc, proof)) {
        let (stated, count) = (ztoc.compressed_size.0, counted(count, "difference", "differences"));
        return format!(
            "this is the ztoc of another layer: it is for a blob of {stated} bytes, not {}, and none of its spans is \
             in this one\n{count}; --format json lists them\n",
            proof.size
        );
    }
    let more = if proof.more > 0 { format!("... and {} more\n", proof.more) } else { String::new() };
    format!("{differences}{more}{}\n", counted(count, "difference", "differences"))
}

/// Whether a complete layer has none of the content that the ztoc describes. Each entry would be a
/// difference then.
fn is_of_another_layer(ztoc: &Ztoc, proof: &Proof) -> bool {
    proof.diff_id.is_some() && proof.size != ztoc.compressed_size.0 && proof.matching == 0
}

/// The JSON output of `ociseek ztoc verify`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Proven {
    status: Status,
    layer: Layer,
    ztoc: ZtocFacts,
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
    more_differences: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
    /// Null if decoding the layer failed.
    diff_id: Option<DigestText>,
    uncompressed_size: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ZtocFacts {
    digest: DigestText,
    size: u64,
    /// Null if the ztoc cannot be used, like the next field.
    spans: Option<u64>,
    entries: Option<usize>,
    /// Bytes of decoded spans that were compared.
    compared: u64,
}

impl Proven {
    fn of(bytes: &[u8], ztoc: Option<&Ztoc>, proof: &Proof) -> Proven {
        Proven {
            status: Status::of(proof.holds()),
            layer: Layer {
                digest: proof.digest.into(),
                size: proof.size,
                diff_id: proof.diff_id.map(DigestText::from),
                uncompressed_size: proof.plain_size,
            },
            ztoc: ZtocFacts {
                digest: Digest::sha256(bytes).into(),
                size: bytes.len() as u64,
                spans: ztoc.map(|ztoc| ztoc.checkpoints.spans()),
                entries: ztoc.map(|ztoc| ztoc.files.len()),
                compared: proof.compared,
            },
            differences: proof.differences.iter().map(DifferenceJson::from).collect(),
            more_differences: proof.more,
        }
    }
}
