//! Hashes of tensors, and the file of hashes.

use std::{collections::BTreeMap, fs, sync::Mutex};

use autobwd::{
    DType, Executor, Result, Tensor,
    exec::ARITHMETIC_VERSION,
    tensor::{bf16, f16},
};
use xxhash_rust::xxh3::Xxh3;

use crate::parts::BitResult;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bits/hashes.txt");

/// The hash of dtype, shape and elements. All NaN are one: their payloads are not promised.
pub(crate) fn hash(tensor: &Tensor) -> Result<u64> {
    let mut hash = Xxh3::new();
    hash.update(tensor.dtype().name().as_bytes());
    tensor.dims().iter().for_each(|n| hash.update(&(*n as u64).to_le_bytes()));
    macro_rules! update {
        ($t:ident) => {
            tensor.slice::<$t>()?.iter().for_each(|x| {
                let x = if x.is_nan() { $t::NAN } else { *x };
                hash.update(&x.to_bits().to_le_bytes());
            })
        };
    }
    match tensor.dtype() {
        DType::F16 => update!(f16),
        DType::BF16 => update!(bf16),
        DType::F32 => update!(f32),
        DType::F64 => update!(f64),
        _ => hash.update(tensor.bytes()),
    }
    Ok(hash.digest())
}

/// Results by name, with their hashes on all executors. Each name begins with `prefix`.
pub(crate) fn by_threads(
    prefix: &str,
    executors: &[Executor],
    found: &[Vec<(String, Tensor)>],
) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for (k, (name, _)) in found.first().into_iter().flatten().enumerate() {
        let of = |(executor, values): (&Executor, &Vec<(String, Tensor)>)| {
            Ok((format!("{} threads", executor.threads()), hash(&values[k].1)?))
        };
        let hashes = executors.iter().zip(found).map(of).collect::<Result<_>>()?;
        results.push(BitResult { name: format!("{prefix}{name}"), hashes });
    }
    Ok(results)
}

/// The hashes of groups of results: of all with the same first word.
pub(crate) fn grouped(results: &[BitResult]) -> BTreeMap<String, String> {
    let mut groups: BTreeMap<String, Xxh3> = BTreeMap::new();
    for result in results {
        let group = result.name.split(' ').next().unwrap_or_default();
        let hash = groups.entry(group.into()).or_default();
        hash.update(result.name.as_bytes());
        hash.update(&result.hashes[0].1.to_le_bytes());
    }
    groups.into_iter().map(|(name, hash)| (name, format!("{:016x}", hash.digest()))).collect()
}

/// The names and hashes of a part in the file, for the present version. With `UPDATE=1`, these become `found`.
pub(crate) fn expected(
    part: &str,
    found: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    static FILE: Mutex<()> = Mutex::new(());
    let _guard = FILE.lock().map_err(|e| e.to_string())?;
    let text = fs::read_to_string(PATH).unwrap_or_default();
    let start = format!("{ARITHMETIC_VERSION} {part}/");
    if std::env::var_os("UPDATE").is_none() {
        let lines = text.lines().filter_map(|line| line.strip_prefix(&start)?.rsplit_once(' '));
        return Ok(lines.map(|(name, hash)| (name.into(), hash.into())).collect());
    }
    let others = text.lines().filter(|line| !line.starts_with(&start)).map(str::to_string);
    let mut lines: Vec<String> =
        others.chain(found.iter().map(|(name, hash)| format!("{start}{name} {hash}"))).collect();
    lines.sort_by_cached_key(|line| {
        let (version, rest) = line.split_once(' ').unwrap_or_default();
        (version.parse::<u32>().unwrap_or(0), rest.to_string())
    });
    fs::write(PATH, lines.join("\n") + "\n").map_err(|e| e.to_string())?;
    Ok(found.clone())
}
