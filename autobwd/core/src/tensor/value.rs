//! Tensors that users own.

use std::{fmt, ops::AddAssign};

use ndarray::{Array, ArrayBase, ArrayD, ArrayView, ArrayViewMut, Data, Dimension, IxDyn};

use super::{
    DType, Dims, Element, Memory, Meta, Shape, Vector, dimension,
    half_float::{HalfFloat, with_half},
    prefer_huge_pages,
};
use crate::{Error, ErrorKind, Result, with_dtype};

/// An owned, row-major tensor: fed, fetched, or stored in a `Scope`.
///
/// ```
/// use autobwd::{Tensor, ndarray::{Ix2, array}};
/// let x = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(x.dims(), [2, 2]);
/// assert_eq!(x.slice::<f32>()?[3], 4.0);
/// assert_eq!(x.view::<f32, Ix2>()?.row(1).sum(), 7.0);
/// assert_eq!(x.into_array::<f32, Ix2>()?, array![[1.0, 2.0], [3.0, 4.0]]);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Copies
///
/// A tensor made by value from a vector or a row-major array takes over its memory, and [`into_vec`](Tensor::into_vec)
/// and [`into_array`](Tensor::into_array) return it: neither copies. Fetched tensors are also such vectors. Kernels
/// need memory aligned to a cache line, so such a tensor is copied once before kernels use it: when the first session
/// that uses it is prepared, in a `Scope`, or when it becomes a value of an eager [`Builder`](crate::Builder). Feeding
/// always copies into the plan's memory.
pub struct Tensor {
    dtype: DType,
    dims: Shape,
    elements: TensorData,
}

/// The owner of a tensor's elements.
enum TensorData {
    /// Memory aligned to cache lines, as kernels need it.
    Lines(Memory),
    /// A vector whose memory was taken over.
    Vector(Vector),
}

impl Tensor {
    /// Zeros.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let elements = TensorData::Lines(Memory::zeroed(bytes(dtype, dims)?)?);
        Ok(Tensor { dtype, dims: dims.into(), elements })
    }

    /// Takes over a vector of elements in row-major order, without a copy.
    ///
    /// # Errors
    /// A number of elements other than the shape's; a shape that exceeds the address space, even without elements.
    pub fn from_vec<T: Element>(dims: impl AsRef<[usize]>, elements: Vec<T>) -> Result<Tensor> {
        let dims = dims.as_ref();
        if bytes(T::DTYPE, dims)? != size_of_val(&*elements) {
            let n = elements.len();
            return Err(Error::new(ErrorKind::Shape, format!("{n} elements do not fill shape {dims:?}")));
        }
        Ok(Tensor { dtype: T::DTYPE, dims: dims.into(), elements: TensorData::Vector(elements.into()) })
    }

    /// A tensor of any dtype, with the nearest elements to numbers: floating point numbers are rounded once, integers
    /// truncated, and a number other than 0 is true.
    ///
    /// ```
    /// use autobwd::{DType, Tensor};
    /// let x = Tensor::from_f64s(DType::F16, [2], &[0.1, 1e6])?;
    /// assert_eq!(x.to_f64s(), [0.0999755859375, f64::INFINITY]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_vec`](Tensor::from_vec).
    pub fn from_f64s(dtype: DType, dims: impl AsRef<[usize]>, numbers: &[f64]) -> Result<Tensor> {
        with_dtype!(dtype, T => Tensor::from_vec(dims, numbers.iter().map(|x| T::nearest(*x)).collect()))
    }

    /// One element, rank 0.
    ///
    /// # Errors
    /// Memory runs out.
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

    /// Dtype and dimensions, as in programs.
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
        Ok(self.elements())
    }

    /// The elements, which are of this type.
    fn elements<T: Element>(&self) -> &[T] {
        match &self.elements {
            TensorData::Lines(memory) => memory.slice(0, self.numel()),
            TensorData::Vector(vector) => vector.slice(),
        }
    }

    /// The elements in row-major order, mutably.
    ///
    /// # Errors
    /// Another dtype.
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check::<T>()?;
        let n = self.numel();
        Ok(match &mut self.elements {
            TensorData::Lines(memory) => memory.slice_mut(0, n),
            TensorData::Vector(vector) => vector.slice_mut(),
        })
    }

    /// The elements as an array of fixed rank (`Ix2`), or of any rank (`IxDyn`).
    ///
    /// # Errors
    /// Another dtype or rank.
    pub fn view<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        ArrayView::from_shape(self.dimension::<D>()?, self.slice()?).map_err(Error::internal)
    }

    /// The elements as an array, mutably.
    ///
    /// # Errors
    /// As [`view`](Tensor::view).
    pub fn view_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>> {
        ArrayViewMut::from_shape(self.dimension::<D>()?, self.slice_mut()?).map_err(Error::internal)
    }

    fn dimension<D: Dimension>(&self) -> Result<D> {
        dimension(&self.dims).ok_or_else(|| {
            let (rank, dims) = (D::NDIM.unwrap_or_default(), &self.dims);
            Error::new(ErrorKind::Shape, format!("the tensor has shape {dims:?}, not {rank} dimensions"))
        })
    }

    /// A copy of the elements as an array.
    ///
    /// # Errors
    /// Another dtype; memory for the copy runs out.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(self.dimension::<IxDyn>()?, copied(self.slice()?)?).map_err(Error::internal)
    }

    /// The elements in row-major order as a vector. Without a copy if the tensor was made from a vector or fetched.
    ///
    /// # Errors
    /// Another dtype; memory for a copy runs out.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        self.check::<T>()?;
        match self.elements {
            TensorData::Vector(vector) => {
                vector.into_vec().map_err(|_| Error::internal("a vector of another dtype"))
            }
            TensorData::Lines(_) => copied(self.elements()),
        }
    }

    /// The elements as an array of fixed or any rank; copies only if [`into_vec`](Tensor::into_vec) does.
    ///
    /// # Errors
    /// Another dtype or rank; memory for a copy runs out.
    pub fn into_array<T: Element, D: Dimension>(self) -> Result<Array<T, D>> {
        Array::from_shape_vec(self.dimension::<D>()?, self.into_vec()?).map_err(Error::internal)
    }

    /// The only element, converted to `f64`.
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
        with_dtype!(self.dtype, T => self.elements::<T>().iter().map(|x| x.to_f64()).collect())
    }

    /// The elements as other floating point numbers, rounded once to the nearest, ties to even: float16, bfloat16 and
    /// float32 into each other. `None` for other dtypes, and if a finite number would be infinite in float16.
    ///
    /// ```
    /// use autobwd::{DType, Tensor};
    /// let x = Tensor::from_vec([2], vec![0.1_f32, 1e6])?;
    /// assert_eq!(x.converted_to(DType::F16)?, None);
    /// let rounded = x.converted_to(DType::BF16)?.expect("bfloat16 has the range of float32");
    /// assert_eq!(rounded.to_f64s(), [0.10009765625, 999424.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Memory runs out.
    pub fn converted_to(&self, dtype: DType) -> Result<Option<Tensor>> {
        let mut converted = Tensor::zeros(dtype, &self.dims)?;
        let is_converted = match self.dtype {
            DType::F32 => convert::<f32>(self, &mut converted)?,
            dtype => with_half!(dtype, T => convert::<T>(self, &mut converted)?, _ => false),
        };
        Ok(is_converted.then_some(converted))
    }

    /// The elements as bytes, in the byte order of this machine.
    pub fn bytes(&self) -> &[u8] {
        match &self.elements {
            TensorData::Lines(memory) => memory.slice(0, self.numel() * self.dtype.size()),
            TensorData::Vector(vector) => vector.bytes(),
        }
    }

    /// The elements as bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.numel() * self.dtype.size();
        match &mut self.elements {
            TensorData::Lines(memory) => memory.slice_mut(0, n),
            TensorData::Vector(vector) => vector.bytes_mut(),
        }
    }

    /// The elements in memory aligned to cache lines, as kernels need it: a vector is copied.
    ///
    /// # Errors
    /// Memory for the copy runs out.
    pub(crate) fn into_memory(self) -> Result<Memory> {
        match self.elements {
            TensorData::Lines(memory) => Ok(memory),
            TensorData::Vector(vector) => lines(vector.bytes()),
        }
    }

    /// As [`into_memory`](Tensor::into_memory), by reference.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn memory(&mut self) -> Result<&Memory> {
        if let TensorData::Vector(vector) = &self.elements {
            self.elements = TensorData::Lines(lines(vector.bytes())?);
        }
        self.shared_memory()
    }

    /// As [`memory`](Tensor::memory), of a tensor whose elements are in such memory already.
    ///
    /// # Errors
    /// A vector.
    pub(crate) fn shared_memory(&self) -> Result<&Memory> {
        match &self.elements {
            TensorData::Lines(memory) => Ok(memory),
            TensorData::Vector(_) => Err(Error::internal("a tensor without memory")),
        }
    }

    /// A copy of the value at byte `at`; for a row-sparse tensor, of the dense one; of the shape that data has decided.
    pub(crate) fn copy_of(memory: &Memory, at: usize, meta: &Meta) -> Result<Tensor> {
        let dims = match meta.is_decided() {
            true => memory.decided_dims(at, meta)?,
            false => meta.dims.known().unwrap_or_default(),
        };
        if meta.rows.is_some() {
            let mut tensor = Tensor::zeros(meta.dtype, &dims)?;
            with_dtype!(meta.dtype, T => for (row, values) in memory.rows::<T>(at, meta).iter() {
                tensor.slice_mut()?[row * values.len()..][..values.len()].copy_from_slice(values);
            });
            return Ok(tensor);
        }
        let (numel, at) = (dims.iter().product(), at + meta.header_bytes());
        with_dtype!(meta.dtype, T => Tensor::from_vec(dims, copied(memory.slice::<T>(at, numel))?))
    }

    /// As [`copy_of`](Tensor::copy_of), as memory that starts with the value.
    pub(crate) fn memory_of(memory: &Memory, meta: &Meta) -> Result<Memory> {
        match (meta.rows, meta.bytes()) {
            (None, Some(bytes)) => lines(memory.slice(0, bytes)),
            _ => Tensor::copy_of(memory, 0, meta)?.into_memory(),
        }
    }
}

/// Converts the elements of a tensor, which are of this type. Returns whether all finite numbers stay finite.
fn convert<X: Element + ToF64>(from: &Tensor, to: &mut Tensor) -> Result<bool> {
    fn round<X: ToF64, Y: ToF64>(from: &[X], to: &mut [Y]) -> bool {
        from.iter().zip(to).fold(true, |all_stay, (x, y)| {
            let x = x.to_f64();
            *y = Y::nearest(x);
            all_stay & (y.to_f64().is_finite() | !x.is_finite())
        })
    }
    let elements = from.slice::<X>()?;
    Ok(match to.dtype {
        DType::F32 => round(elements, to.slice_mut::<f32>()?),
        dtype => with_half!(dtype, T => round(elements, to.slice_mut::<T>()?), _ => false),
    })
}

/// Size of a tensor in bytes.
fn bytes(dtype: DType, dims: &[usize]) -> Result<usize> {
    let refuse = || Error::new(ErrorKind::Shape, format!("{dtype} {dims:?} exceeds the address space"));
    Meta::new(dtype, dims).bytes().ok_or_else(refuse)
}

/// A copy aligned to cache lines.
fn lines(bytes: &[u8]) -> Result<Memory> {
    let mut memory = Memory::any(bytes.len())?;
    memory.slice_mut(0, bytes.len()).copy_from_slice(bytes);
    Ok(memory)
}

/// A copy, or an error if memory runs out.
fn copied<T: Element>(elements: &[T]) -> Result<Vec<T>> {
    let mut copy = vec![];
    let refuse =
        |_| Error::new(ErrorKind::OutOfMemory, format!("cannot allocate {} bytes", size_of_val(elements)));
    copy.try_reserve_exact(elements.len()).map_err(refuse)?;
    prefer_huge_pages(copy.spare_capacity_mut());
    copy.extend_from_slice(elements);
    Ok(copy)
}

/// Adds the elements of `x` to the elements of `sum`, which has the same dtype and shape.
///
/// # Errors
/// Another dtype or shape.
pub fn add_up(sum: &mut Tensor, x: &Tensor) -> Result<()> {
    if sum.meta() != x.meta() {
        let text = format!("cannot add {} {:?} to {} {:?}", x.dtype, x.dims, sum.dtype, sum.dims);
        return Err(Error::new(ErrorKind::Shape, text));
    }
    fn add<T: Element + AddAssign>(sum: &mut Tensor, x: &Tensor) -> Result<()> {
        sum.slice_mut::<T>()?.iter_mut().zip(x.slice::<T>()?).for_each(|(sum, x)| *sum += *x);
        Ok(())
    }
    fn add_halves<H: HalfFloat>(sum: &mut Tensor, x: &Tensor) -> Result<()> {
        let pairs = sum.slice_mut::<H>()?.iter_mut().zip(x.slice::<H>()?);
        pairs.for_each(|(sum, x)| *sum = H::round(sum.single() + x.single()));
        Ok(())
    }
    match sum.dtype {
        DType::F32 => add::<f32>(sum, x),
        DType::F64 => add::<f64>(sum, x),
        dtype => with_half!(dtype, T => add_halves::<T>(sum, x), _ => {
            Err(Error::new(ErrorKind::DType, format!("floating point numbers are needed, not {dtype}")))
        }),
    }
}

/// Conversion of any `Element` to `f64`, and back.
pub trait ToF64 {
    /// The number.
    fn to_f64(&self) -> f64;
    /// The nearest element; a number other than 0 is true.
    fn nearest(x: f64) -> Self;
}
macro_rules! to_f64 {
    ($($t:ty),*) => {$(
        impl ToF64 for $t {
            fn to_f64(&self) -> f64 {
                *self as f64
            }
            fn nearest(x: f64) -> $t {
                x as $t
            }
        }
    )*};
}
to_f64!(u8, i32, i64, f32, f64);
impl<T: HalfFloat> ToF64 for T {
    fn to_f64(&self) -> f64 {
        self.single().into()
    }
    fn nearest(x: f64) -> T {
        T::round_double(x)
    }
}
impl ToF64 for super::Bool {
    fn to_f64(&self) -> f64 {
        f64::from(u8::from(self.get()))
    }
    fn nearest(x: f64) -> super::Bool {
        (x != 0.0).into()
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;
    /// Copies the elements, for any layout of the array.
    fn try_from(array: &ArrayBase<S, D>) -> Result<Tensor> {
        Tensor::from_vec(array.shape(), array.iter().copied().collect())
    }
}
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = Error;
    /// Takes over the memory of a row-major array; other layouts are copied.
    fn try_from(array: Array<T, D>) -> Result<Tensor> {
        if !array.is_standard_layout() {
            return Tensor::try_from(&array);
        }
        let (dims, numel) = (Shape::from(array.shape()), array.len());
        let (mut elements, first) = array.into_raw_vec_and_offset();
        // The array may be a slice of its vector.
        elements.drain(..first.unwrap_or(0));
        elements.truncate(numel);
        Tensor::from_vec(dims, elements)
    }
}
impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        let vector =
            || with_dtype!(self.dtype, T => TensorData::Vector(self.elements::<T>().to_vec().into()));
        let elements = match &self.elements {
            // Where memory runs out, a vector reports it.
            TensorData::Lines(_) => lines(self.bytes()).map_or_else(|_| vector(), TensorData::Lines),
            TensorData::Vector(_) => vector(),
        };
        Tensor { dtype: self.dtype, dims: self.dims.clone(), elements }
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
        with_dtype!(self.dtype, T => match self.view::<T, IxDyn>() {
            Ok(view) => view.fmt(f),
            Err(_) => Err(fmt::Error),
        })
    }
}
