//! Data sets from files: what they deliver, and what they refuse.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use autobwd::{Error, ErrorKind, Result, Tensor};
use autobwd_data::{CsvColumns, Dataset, TensorDataset, TextUnit, TextWindows, load_npz, save_npz};
use proptest::prelude::*;
use zip::{ZipWriter, write::SimpleFileOptions};

/// The message, without the folder.
fn text_in<T>(folder: &Path, outcome: Result<T>) -> String {
    let text = outcome.err().map(|e: Error| e.to_string()).unwrap_or_default();
    text.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn fields_must_agree() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(autobwd::DType::F32, dims);
    let refused = |fields: Vec<(&str, Tensor)>| TensorDataset::new(fields).unwrap_err().to_string();
    assert_eq!(refused(vec![]), "examples need at least one field");
    assert!(refused(vec![("x", zeros(&[])?)]).starts_with("field `x` is a scalar"));
    assert_eq!(
        refused(vec![("x", zeros(&[3, 2])?), ("y", zeros(&[2])?)]),
        "field `y` has 2 examples, but `x` has 3"
    );
    assert_eq!(refused(vec![("x", zeros(&[3])?), ("x", zeros(&[3])?)]), "two fields have the name `x`");
    let data = TensorDataset::new([("pixels", zeros(&[3, 0])?), ("y", zeros(&[3, 1])?)])?;
    assert_eq!(data.batch(&[2, 2])?.get("pixels")?.dims(), [2, 0]);
    assert_eq!(data.batch(&[3]).unwrap_err().to_string(), "there is no example 3: the data set has 3");
    let text = data.batch(&[0])?.get("pixel").unwrap_err().to_string();
    assert_eq!(text, "the batch has no field `pixel`; did you mean `pixels`?");
    assert!(TensorDataset::new([("x", zeros(&[0, 3])?)])?.is_empty());
    Ok(())
}

#[test]
fn truncated_npz_files_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let x = Tensor::from_vec([20, 3], (0..60).map(|k| k as f32).collect())?;
    save_npz(&path, [("x", &x), ("y", &x)])?;
    assert_eq!(load_npz(&path)?, [("x".to_string(), x.clone()), ("y".to_string(), x)]);
    let bytes = fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let e = load_npz(&path).unwrap_err();
        assert!(e.kind() == ErrorKind::Format && e.to_string().contains("a.npz`: "), "{e}");
    }
    Ok(())
}

/// An archive with one array of this header, compressed.
fn npz_with(path: &Path, header: &str, elements: &[u8]) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    archive.start_file("x.npy", SimpleFileOptions::default()).unwrap();
    archive.write_all(b"\x93NUMPY\x01\x00").unwrap();
    archive.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    archive.write_all(header.as_bytes()).unwrap();
    archive.write_all(elements).unwrap();
    archive.finish().unwrap();
}

#[test]
fn npz_files_that_lie_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let refused = |header: &str, elements: &[u8]| {
        npz_with(&path, header, elements);
        text_in(folder.path(), load_npz(&path))
    };
    let header = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let few = "`a.npz`: array `x`: 4000000 bytes of elements are expected; the file has fewer or more";
    assert_eq!(refused(&header("(1000000,)"), &[0; 64]), few);
    // A small file of many zeros is not unpacked further than the shape says.
    assert!(refused(&header("(2,)"), &vec![0; 1 << 24]).contains("8 bytes of elements are expected"));
    let text = "`a.npz`: array `x`: more than 17179869184 bytes";
    assert_eq!(refused(&header("(4294967296, 4)"), &[]), text);
    assert_eq!(refused(&header("(18446744073709551615, 18446744073709551615)"), &[]), text);
    assert!(refused(&header("(-1,)"), &[]).ends_with("its header has no valid `shape`"));
    assert!(refused("{'descr': 'O'}", &[]).contains("dtype `O` is not known"));
    assert!(refused("", &[]).ends_with("its header has no `descr`"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_files_never_panic(at in 0..600_usize, byte in any::<u8>(), len in 1..600_usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let x = Tensor::from_vec([4, 3], vec![1.0_f32; 12]).unwrap();
        save_npz(&path, [("x", &x)]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let (at, len) = (at % bytes.len(), len.min(bytes.len()));
        bytes[at] = byte;
        fs::write(&path, &bytes[..len]).unwrap();
        drop(load_npz(&path));
        drop(CsvColumns::new().numbers("x", [0]).parse(&bytes[..]));
        drop(TextWindows::new(&bytes, TextUnit::Character, 1));
    }
}

#[test]
fn text_is_cut_into_windows() -> Result<()> {
    let text = TextWindows::new([9, 8, 7, 6, 5, 4], TextUnit::Byte, 2)?.fields("now", "next");
    assert_eq!((text.len(), text.vocabulary()), (2, &[][..]));
    let batch = text.batch(&[1, 0])?;
    assert_eq!(batch.get("now")?, &Tensor::from_vec([2, 2], vec![7_i64, 6, 9, 8])?);
    assert_eq!(batch.get("next")?, &Tensor::from_vec([2, 2, 1], vec![6_i64, 5, 8, 7])?);
    let every = text.clone().stride(1);
    assert_eq!(every.len(), 4);
    assert_eq!(every.batch(&[3])?.get("next")?.slice::<i64>()?, [5, 4]);
    assert_eq!(every.batch(&[4]).unwrap_err().to_string(), "there is no window 4: the text has 4");
    assert!(every.batch(&[usize::MAX]).is_err());
    assert_eq!(text.clone().stride(usize::MAX).len(), 1);
    let fingerprints = [&text, &every, &TextWindows::new([9, 8, 7, 6, 5, 3], TextUnit::Byte, 2)?];
    let [a, b, c] = fingerprints.map(Dataset::fingerprint);
    assert!(a != b && b != c && c != a);

    let refused = |text: &[u8], length: usize| {
        TextWindows::new(text, TextUnit::Character, length).unwrap_err().to_string()
    };
    assert_eq!(refused(b"abc", 3), "a text of 3 tokens is too short for a window of 3 and the next token");
    assert_eq!(refused(b"abc", 0), "a window needs at least 1 token, not 0");
    assert_eq!(refused(b"ab\xff", 1), "the text is not UTF-8 after byte 2: `TextUnit::Byte` takes any");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let read = || TextWindows::read(&path, TextUnit::Character, 3);
    assert!(text_in(folder.path(), read()).starts_with("cannot read `a.txt`: "));
    fs::write(&path, "äöü").unwrap();
    assert!(text_in(folder.path(), read()).starts_with("`a.txt`: a text of 3 tokens"));
    fs::write(&path, "äöüä").unwrap();
    assert_eq!(read()?.batch(&[0])?.get("y")?.slice::<i64>()?, [1, 2, 0]);
    Ok(())
}
