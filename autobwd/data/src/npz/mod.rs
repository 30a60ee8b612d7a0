//! Arrays in NumPy's `.npz` files: zip archives of `.npy` files.
//!
//! The format is described in `numpy.lib.format`, versions 1 to 3. The crates that implement it parse the header with a
//! grammar of Python literals, at ten times the build time of this file.

mod header;

use std::{
    fmt::Display,
    io::{BufReader, Cursor, Read, Write},
    path::Path,
};

use autobwd_core::{
    DType, Error, ErrorKind, Result, Tensor,
    tensor::{open_file, write_atomically},
    with_dtype,
};
use header::Header;
use ndarray::{ArrayView, IxDyn, ShapeBuilder};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

/// The limit of the bytes of a file, and of all its arrays, as for safetensors.
const LIMIT: u64 = 1 << 34;

/// Reads all arrays of a `.npz` file of NumPy, in its order.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_data::{Dataset, TensorDataset, load_npz, save_npz};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.npz");
/// let (x, y) = (Tensor::from_vec([2, 2], vec![0.0_f32; 4])?, Tensor::from_vec([2, 1], vec![0_i64, 1])?);
/// save_npz(&path, [("x", &x), ("y", &y)])?;
/// let data = TensorDataset::new(load_npz(&path)?)?;
/// assert_eq!(data.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of the file system; a file that is no archive of arrays; dtypes that [`DType`] lacks; arrays of more
/// than 16 GiB together, or with fewer bytes than their shape needs. Each names the file and the array.
pub fn load_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    let path = path.as_ref();
    let refuse = |text: &dyn Display| Error::new(ErrorKind::Format, format!("`{}`: {text}", path.display()));
    let file = open_file(path, LIMIT)?;
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|e| refuse(&format!("not an npz file: {e}")))?;
    let (mut arrays, mut left) = (vec![], LIMIT);
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| refuse(&e))?;
        let name = entry.name().strip_suffix(".npy").unwrap_or(entry.name()).to_string();
        // The archive may lie about sizes.
        let array = read_npy(&mut entry, left).map_err(|why| refuse(&format!("array `{name}`: {why}")))?;
        left -= array.bytes().len() as u64;
        arrays.push((name, array));
    }
    Ok(arrays)
}

fn read_npy(entry: &mut impl Read, limit: u64) -> Result<Tensor, String> {
    let Header { dtype, dims, is_column_major } = Header::read(entry)?;
    let numel = dims.iter().try_fold(dtype.size() as u64, |n, dim| n.checked_mul(*dim as u64));
    let size = numel.filter(|size| *size <= limit).ok_or(format!("more than {limit} bytes"))?;
    let mut bytes = vec![];
    entry.take(size + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 != size {
        return Err(format!("{size} bytes of elements are expected; the file has fewer or more"));
    }
    let tensor = || -> Result<Tensor> {
        let mut tensor = Tensor::zeros(dtype, &dims)?;
        tensor.bytes_mut().copy_from_slice(&bytes);
        if is_column_major { row_major(&tensor) } else { Ok(tensor) }
    };
    tensor().map_err(|e| e.to_string())
}

/// The elements of a tensor that were written in column-major order.
fn row_major(tensor: &Tensor) -> Result<Tensor> {
    with_dtype!(tensor.dtype(), T => {
        let shape = IxDyn(tensor.dims()).f();
        let view = ArrayView::from_shape(shape, tensor.slice::<T>()?);
        Tensor::try_from(&view.map_err(|e| Error::new(ErrorKind::Shape, e.to_string()))?)
    })
}

/// Writes arrays to a `.npz` file of NumPy, which is replaced as a whole.
///
/// # Errors
/// The errors of [`write_atomically`]; an array of more than 64 dimensions, which NumPy does not have; two arrays of
/// one name.
pub fn save_npz<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    let path = path.as_ref();
    let refuse =
        |e: &dyn Display| Error::new(ErrorKind::Format, format!("cannot write `{}`: {e}", path.display()));
    let mut archive = ZipWriter::new(Cursor::new(vec![]));
    for (name, tensor) in arrays {
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(tensor.bytes().len() as u64 >= u64::from(u32::MAX));
        archive.start_file(format!("{name}.npy"), options).map_err(|e| refuse(&e))?;
        let header = Header { dtype: tensor.dtype(), dims: tensor.dims().to_vec(), is_column_major: false };
        let header = header.to_bytes().map_err(|why| refuse(&format!("`{name}`: {why}")))?;
        let written = archive.write_all(&header).and_then(|()| archive.write_all(tensor.bytes()));
        written.map_err(|e| refuse(&e))?;
    }
    let file = archive.finish().map_err(|e| refuse(&e))?;
    write_atomically(path, file.get_ref())
}

/// The dtypes of arrays with their names in NumPy. NumPy has no bfloat16. Its extension ml_dtypes writes bfloat16 as
/// untyped elements of two bytes. NumPy reads such files, and a view of the array has the dtype again.
const DTYPES: [(DType, &str); 9] = [
    (DType::Bool, "|b1"),
    (DType::U8, "|u1"),
    (DType::I32, "<i4"),
    (DType::I64, "<i8"),
    (DType::F16, "<f2"),
    (DType::BF16, "<V2"),
    (DType::BF16, "|V2"),
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
];
