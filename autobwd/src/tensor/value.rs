use std::{fmt, ops::AddAssign};

use ndarray::{ArrayBase, ArrayD, ArrayViewD, Data, Dimension, IxDyn};

use super::{DType, Dims, Element, Memory, Meta, Shape};
use crate::{Error, ErrorKind, Result, with_dtype};

/// A tensor that somebody owns: fed, fetched, kept in a [`Scope`](crate::Scope). Row-major.
///
/// ```
/// use autobwd::Tensor;
/// let x = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(x.dims(), [2, 2]);
/// assert_eq!(x.slice::<f32>()?[3], 4.0);
/// assert_eq!(x.view::<f32>()?.sum(), 10.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Tensor {
    dtype: DType,
    dims: Shape,
    memory: Memory,
}

impl Tensor {
    /// Zeros.
    ///
    /// # Errors
    /// More bytes than there are.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let bytes = Meta::new(dtype, dims).bytes();
        let bytes =
            bytes.ok_or_else(|| Error::new(ErrorKind::Shape, format!("no memory holds {dtype} {dims:?}")))?;
        Ok(Tensor { dtype, dims: dims.into(), memory: Memory::zeroed(bytes)? })
    }

    /// Takes the elements from a vector, in row-major order.
    ///
    /// # Errors
    /// A number of elements that is not the shape's.
    pub fn from_vec<T: Element>(dims: impl AsRef<[usize]>, elements: Vec<T>) -> Result<Tensor> {
        let dims = dims.as_ref();
        let mut tensor = Tensor::zeros(T::DTYPE, dims)?;
        let slice = tensor.slice_mut()?;
        if slice.len() != elements.len() {
            let n = elements.len();
            return Err(Error::new(ErrorKind::Shape, format!("{n} elements given for shape {dims:?}")));
        }
        slice.copy_from_slice(&elements);
        Ok(tensor)
    }

    /// One element, rank 0.
    ///
    /// # Errors
    /// No memory.
    pub fn scalar<T: Element>(element: T) -> Result<Tensor> {
        Tensor::from_vec([], vec![element])
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Dtype and dimensions, as programs describe them.
    pub fn meta(&self) -> Meta {
        Meta::new(self.dtype, self.dims.iter().copied().collect::<Dims>())
    }

    fn check<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::new(ErrorKind::DType, format!("the tensor holds {}, not {}", self.dtype, T::DTYPE)))
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// Another dtype.
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        self.check::<T>()?;
        Ok(self.memory.slice(0, self.numel()))
    }

    /// The elements in row-major order, to be changed.
    ///
    /// # Errors
    /// Another dtype.
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check::<T>()?;
        let n = self.numel();
        Ok(self.memory.slice_mut(0, n))
    }

    /// The elements as an array.
    ///
    /// # Errors
    /// Another dtype.
    pub fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        ArrayViewD::from_shape(IxDyn(&self.dims), self.slice()?).map_err(Error::internal)
    }

    /// The elements as an array that is owned.
    ///
    /// # Errors
    /// Another dtype.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        Ok(self.view()?.to_owned())
    }

    /// The only element of a tensor of one, converted to `f64`.
    ///
    /// # Errors
    /// Another number of elements.
    pub fn item(&self) -> Result<f64> {
        match self.to_f64s().as_slice() {
            [x] => Ok(*x),
            _ => {
                Err(Error::new(ErrorKind::Shape, format!("one element is needed, not shape {:?}", self.dims)))
            }
        }
    }

    /// All elements, converted to `f64`.
    pub fn to_f64s(&self) -> Vec<f64> {
        with_dtype!(self.dtype, T => self.memory.slice::<T>(0, self.numel()).iter().map(|x| x.to_f64()).collect())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.slice(0, self.numel() * self.dtype.size())
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.numel() * self.dtype.size();
        self.memory.slice_mut(0, n)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn into_memory(self) -> Memory {
        self.memory
    }

    /// A copy of what is at byte `at`; of rows of a tensor, the whole tensor, with zeros in all other rows.
    pub(crate) fn copy_of(memory: &Memory, at: usize, meta: &Meta) -> Result<Tensor> {
        let mut tensor = Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())?;
        if meta.rows.is_some() {
            with_dtype!(meta.dtype, T => for (row, values) in memory.rows::<T>(at, meta).iter() {
                tensor.slice_mut()?[row * values.len()..][..values.len()].copy_from_slice(values);
            });
        } else {
            let bytes = tensor.bytes_mut();
            bytes.copy_from_slice(memory.slice(at, bytes.len()));
        }
        Ok(tensor)
    }
}

/// Adds the elements of `x` to those of `sum`, numbers of one dtype and shape.
///
/// # Errors
/// Another dtype or shape.
pub(crate) fn add_up(sum: &mut Tensor, x: &Tensor) -> Result<()> {
    if sum.meta() != x.meta() {
        let text = format!("{} {:?} is added to {} {:?}", x.dtype, x.dims, sum.dtype, sum.dims);
        return Err(Error::new(ErrorKind::Shape, text));
    }
    fn add<T: Element + AddAssign>(sum: &mut Tensor, x: &Tensor) -> Result<()> {
        sum.slice_mut::<T>()?.iter_mut().zip(x.slice::<T>()?).for_each(|(sum, x)| *sum += *x);
        Ok(())
    }
    match sum.dtype {
        DType::F32 => add::<f32>(sum, x),
        DType::F64 => add::<f64>(sum, x),
        dtype => Err(Error::new(ErrorKind::DType, format!("floating point numbers are needed, not {dtype}"))),
    }
}

/// Conversions that `Element` itself has no word for.
pub(crate) trait ToF64 {
    fn to_f64(&self) -> f64;
}
macro_rules! to_f64 {
    ($($t:ty),*) => {$(
        impl ToF64 for $t {
            fn to_f64(&self) -> f64 {
                *self as f64
            }
        }
    )*};
}
to_f64!(u8, i32, i64, f32, f64);
impl ToF64 for super::Bool {
    fn to_f64(&self) -> f64 {
        f64::from(u8::from(self.get()))
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;
    /// Copies the elements, whatever the array's layout.
    fn try_from(array: &ArrayBase<S, D>) -> Result<Tensor> {
        Tensor::from_vec(array.shape(), array.iter().copied().collect())
    }
}
impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        let mut copy = match Tensor::zeros(self.dtype, &self.dims) {
            Ok(copy) => copy,
            // What `Vec::clone` does when memory runs out.
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Tensor>()),
        };
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}
impl PartialEq for Tensor {
    /// Same dtype, shape and elements (so a NaN is unequal to itself).
    fn eq(&self, other: &Tensor) -> bool {
        let same = || with_dtype!(self.dtype, T => self.slice::<T>().ok() == other.slice::<T>().ok());
        self.dtype == other.dtype && self.dims == other.dims && same()
    }
}
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.dtype)?;
        with_dtype!(self.dtype, T => match self.view::<T>() {
            Ok(view) => view.fmt(f),
            Err(_) => Err(fmt::Error),
        })
    }
}
