//! Arrays of NumPy as feeds, and tensors as arrays of NumPy.

use autobwd::{
    DType, Feed, Meta, Session, Tensor,
    ndarray::{ArrayD, ArrayViewD, IxDyn},
    tensor::{Bool, Element, bf16, f16},
};
use numpy::{
    IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::{
    Bound, PyAny, PyResult, Python,
    types::{PyAnyMethods, PyBool, PyFloat, PyInt, PyList, PyTuple},
};

use crate::error::{raised, refused, unreadable};

/// An array that is fed, and that nothing in this module writes meanwhile.
pub(crate) trait InputArray {
    /// The elements where NumPy has them, in any layout.
    fn feed(&self) -> Box<dyn Feed + Send + '_>;

    /// A copy of the elements.
    ///
    /// # Errors
    /// Memory runs out.
    fn to_tensor(&self) -> autobwd::Result<Tensor>;
}

impl<T: Element + numpy::Element> InputArray for PyReadonlyArrayDyn<'_, T> {
    fn feed(&self) -> Box<dyn Feed + Send + '_> {
        Box::new(self.as_array())
    }

    fn to_tensor(&self) -> autobwd::Result<Tensor> {
        let view = self.as_array();
        Tensor::from_vec(view.shape(), view.iter().copied().collect())
    }
}

/// Bools as bytes: a bool of NumPy may be any byte, a bool of Rust may not.
struct Bools<'py>(PyReadonlyArrayDyn<'py, u8>);

impl InputArray for Bools<'_> {
    fn feed(&self) -> Box<dyn Feed + Send + '_> {
        Box::new(BoolFeed(self.0.as_array()))
    }

    fn to_tensor(&self) -> autobwd::Result<Tensor> {
        let view = self.0.as_array();
        Tensor::from_vec(view.shape(), view.iter().map(is_set).collect())
    }
}

/// A view of bools as bytes.
struct BoolFeed<'a>(ArrayViewD<'a, u8>);

impl Feed for BoolFeed<'_> {
    fn meta(&self) -> Meta {
        Meta::new(DType::Bool, self.0.shape())
    }

    fn feed(&self, name: &str, session: &mut Session) -> autobwd::Result<()> {
        let elements = session.feed_mut::<Bool>(name)?;
        elements.iter_mut().zip(&self.0).for_each(|(to, from)| *to = is_set(from));
        Ok(())
    }
}

fn is_set(byte: &u8) -> Bool {
    Bool::from(*byte != 0)
}

/// Reads a value from Python: an array of NumPy, or what NumPy makes an array of without a copy, such as a tensor of
/// PyTorch; numbers and lists of numbers, which get the `declared` dtype.
///
/// # Errors
/// What is no array; dtypes that tensors lack.
pub(crate) fn input_array<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
    declared: Option<DType>,
) -> PyResult<Box<dyn InputArray + 'py>> {
    let mut array = numpy_array(name, value, declared)?;
    let (dtype, is_native): (String, bool) =
        (array.dtype().getattr("name")?.extract()?, array.dtype().getattr("isnative")?.extract()?);
    let Some(known) = DType::from_name(&dtype) else {
        let all = DType::ALL.map(|dtype| format!("`{dtype}`")).join(", ");
        return refused(format!("`{name}` is an array of `{dtype}`: known are {all}"));
    };
    let is_aligned: bool = array.getattr("flags")?.getattr("aligned")?.extract()?;
    if !is_native || !is_aligned {
        array = array.call_method1("astype", (dtype,))?.cast_into()?;
    }
    match known {
        DType::Bool => {
            let bytes = array.call_method1("view", (DType::U8.name(),))?;
            Ok(Box::new(Bools(bytes.cast::<PyArrayDyn<u8>>()?.try_readonly()?)))
        }
        DType::U8 => readonly::<u8>(&array),
        DType::I32 => readonly::<i32>(&array),
        DType::I64 => readonly::<i64>(&array),
        DType::F16 => readonly::<f16>(&array),
        DType::BF16 => readonly::<bf16>(&array),
        DType::F32 => readonly::<f32>(&array),
        DType::F64 => readonly::<f64>(&array),
    }
}

fn readonly<'py, T: Element + numpy::Element>(
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Box<dyn InputArray + 'py>> {
    Ok(Box::new(array.cast::<PyArrayDyn<T>>()?.try_readonly()?))
}

fn numpy_array<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
    declared: Option<DType>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let numpy = value.py().import("numpy")?;
    let is_plain = value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>();
    let array = match declared {
        Some(dtype) if is_plain => {
            require_package(value.py(), name, dtype)?;
            numpy.call_method1("asarray", (value, dtype.name()))
        }
        _ if value.hasattr("__dlpack__")? && !value.hasattr("__array__")? => {
            require_cpu(name, value)?;
            numpy.call_method1("from_dlpack", (value,))
        }
        _ => numpy.call_method1("asarray", (value,)),
    };
    Ok(array.map_err(|cause| unreadable(value.py(), name, cause))?.cast_into()?)
}

/// Types of devices in DLPack whose memory the CPU reads: its own, and memory that CUDA and ROCm share with it.
const HOST_DEVICES: [i64; 4] = [1, 3, 11, 13];

fn require_cpu(name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = value.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i64, i64)>());
    match device.map_err(|cause| unreadable(value.py(), name, cause))? {
        (kind, _) if HOST_DEVICES.contains(&kind) => Ok(()),
        (kind, number) => refused(format!(
            "`{name}` is on another device than the CPU, ({kind}, {number}) in DLPack: copy it to the CPU first"
        )),
    }
}

/// NumPy itself has no bfloat16.
fn require_package(py: Python<'_>, name: &str, dtype: DType) -> PyResult<()> {
    if dtype == DType::BF16 && py.import("ml_dtypes").is_err() {
        return refused(format!(
            "`{name}` is bfloat16, which NumPy has with the package `ml_dtypes`: install it"
        ));
    }
    Ok(())
}

/// A tensor as an array of NumPy, which takes over its memory.
///
/// # Errors
/// A bfloat16 tensor without the package that adds the dtype to NumPy.
pub(crate) fn to_numpy<'py>(py: Python<'py>, name: &str, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    require_package(py, name, tensor.dtype())?;
    match tensor.dtype() {
        DType::Bool => {
            let dims = IxDyn(tensor.dims());
            // The vector keeps its memory.
            let bools = tensor.into_vec::<Bool>().map_err(raised)?.into_iter().map(Bool::get).collect();
            let bools = ArrayD::from_shape_vec(dims, bools);
            bools.map_or_else(|e| refused(e.to_string()), |bools| Ok(bools.into_pyarray(py).into_any()))
        }
        DType::U8 => moved::<u8>(py, tensor),
        DType::I32 => moved::<i32>(py, tensor),
        DType::I64 => moved::<i64>(py, tensor),
        DType::F16 => moved::<f16>(py, tensor),
        DType::BF16 => moved::<bf16>(py, tensor),
        DType::F32 => moved::<f32>(py, tensor),
        DType::F64 => moved::<f64>(py, tensor),
    }
}

fn moved<T: Element + numpy::Element>(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    Ok(tensor.into_array::<T, IxDyn>().map_err(raised)?.into_pyarray(py).into_any())
}
