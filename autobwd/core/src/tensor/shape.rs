//! Shapes, and types of variables for shape rules.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use smallvec::SmallVec;

use super::{Dim, padded};
use crate::{DType, Error, ErrorKind, Result};

/// A shape with every dimension known.
pub type Shape = SmallVec<[usize; 4]>;

/// The dimensions of a variable.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Dims(SmallVec<[Dim; 4]>);

impl Clone for Dims {
    #[inline]
    fn clone(&self) -> Dims {
        // `from_slice` copies bytes; the derived implementation iterates.
        Dims(SmallVec::from_slice(&self.0))
    }
}

impl Dims {
    /// Dimensions from their form in programs: −1 is unknown.
    ///
    /// # Errors
    /// A dimension below −1.
    pub fn from_wire(dims: &[i64]) -> Result<Dims> {
        match dims.iter().find(|d| **d < -1) {
            Some(d) => Err(Error::new(
                ErrorKind::Shape,
                format!("a dimension is 0 or more, or -1 for unknown; {d} in {dims:?}"),
            )),
            None => Ok(dims.iter().map(|d| Dim::from_wire(*d)).collect()),
        }
    }

    /// The number of elements, unknown if a dimension is.
    pub fn numel(&self) -> Dim {
        self.iter().fold(1.into(), |n, d| n * *d)
    }

    /// The shape, if every dimension is known.
    pub fn known(&self) -> Option<Shape> {
        self.iter().map(|d| d.get()).collect()
    }

    /// The shape of the largest tensor, if every dimension is known or has a bound.
    pub fn bounds(&self) -> Option<Shape> {
        self.iter().map(|d| d.bound()).collect()
    }

    /// Whether both can be the same shape.
    pub fn agrees(&self, other: &[Dim]) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.agrees(*b))
    }

    /// The index of a possibly negative axis (−1 is the last).
    pub fn axis(&self, axis: i64) -> Option<usize> {
        let rank = self.len() as i64;
        usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().filter(|a| *a < self.len())
    }

    /// Adds a last dimension.
    pub fn push(&mut self, dim: impl Into<Dim>) {
        self.0.push(dim.into())
    }
}

impl Deref for Dims {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}
impl DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [Dim] {
        &mut self.0
    }
}
impl<D: Into<Dim>> FromIterator<D> for Dims {
    fn from_iter<I: IntoIterator<Item = D>>(dims: I) -> Dims {
        Dims(dims.into_iter().map(Into::into).collect())
    }
}
impl<const N: usize> From<[usize; N]> for Dims {
    fn from(dims: [usize; N]) -> Dims {
        dims.into_iter().collect()
    }
}
impl From<Vec<Dim>> for Dims {
    fn from(dims: Vec<Dim>) -> Dims {
        dims.into_iter().collect()
    }
}
impl From<&[usize]> for Dims {
    fn from(dims: &[usize]) -> Dims {
        dims.iter().copied().collect()
    }
}
impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type of a variable for shape rules: its dtype and dimensions, and its slot.
///
/// The slot makes messages exact without work for the operator's author.
#[derive(Clone, Debug)]
pub struct Meta {
    /// Element type.
    pub dtype: DType,
    /// Dimensions; all known once a program is planned.
    pub dims: Dims,
    /// `None` for a dense tensor. For a row-sparse one ([`VarKind::SelectedRows`](crate::VarKind)) with these
    /// dimensions: its capacity in rows.
    pub rows: Option<Dim>,
    /// Whether it is a tensor array ([`VarKind::TensorArray`](crate::VarKind)): dtype and dimensions then describe an
    /// element. Also set for step scopes, which have neither.
    pub array: bool,
    slot: &'static str,
    constant: Option<Arc<[f64]>>,
}

impl PartialEq for Meta {
    /// Whether dtype, dimensions, kind and slot are equal; elements of a [`constant`](Meta::constant) are not compared.
    fn eq(&self, other: &Meta) -> bool {
        let kinds = |meta: &Meta| (meta.dtype, meta.rows, meta.array, meta.slot);
        kinds(self) == kinds(other) && self.dims == other.dims
    }
}

/// Tensors with more elements are no constants: no shape has as many dimensions.
pub const MAX_CONSTANT: usize = 1024;

impl Meta {
    /// A dense tensor of this dtype and these dimensions.
    pub fn new(dtype: DType, dims: impl Into<Dims>) -> Meta {
        Meta { dtype, dims: dims.into(), rows: None, array: false, slot: "", constant: None }
    }

    /// Step scopes, without dtype and dimensions.
    pub(crate) fn scopes() -> Meta {
        Meta { array: true, ..Meta::new(DType::F32, []) }
    }

    /// The same in a slot.
    pub(crate) fn in_slot(self, slot: &'static str) -> Meta {
        Meta { slot, ..self }
    }

    /// Name of the slot.
    pub fn slot(&self) -> &'static str {
        self.slot
    }

    /// The elements of an input whose slot is declared `constant`, known once the program is planned; `None` before.
    /// Integers beyond 2^53 are rounded.
    pub fn constant(&self) -> Option<&[f64]> {
        self.constant.as_deref()
    }

    /// The same with known elements.
    pub(crate) fn with_constant(self, constant: Option<Arc<[f64]>>) -> Meta {
        Meta { constant, ..self }
    }

    /// Whether data decides a dimension: the memory then starts with the shape, a number a dimension in whole cache lines,
    /// and has room for the largest tensor.
    pub(crate) fn is_decided(&self) -> bool {
        self.dims.iter().any(|dim| dim.is_decided())
    }

    /// The same without bounds of dimensions that data decides: what programs declare.
    pub(crate) fn without_bounds(mut self) -> Meta {
        self.dims.iter_mut().for_each(|dim| *dim = dim.without_bound());
        self
    }

    /// The bytes of the shape ahead of the elements, if data decides it.
    pub(crate) fn header_bytes(&self) -> usize {
        if self.is_decided() { padded(self.rank() * size_of::<i64>()) } else { 0 }
    }

    /// Requires few enough elements for a constant.
    ///
    /// # Errors
    /// The error of [`wrong`](Meta::wrong).
    pub(crate) fn small(&self) -> Result<()> {
        let small = self.dims.numel().get().is_none_or(|numel| numel <= MAX_CONSTANT);
        self.require(small, || format!("at most {MAX_CONSTANT} elements are needed"))
    }

    pub(super) fn shared_constant(&self) -> Option<Arc<[f64]>> {
        self.constant.clone()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The dimensions as an array: `let [rows, cols] = self.x.unpack()?;`.
    ///
    /// # Errors
    /// Another rank; names the slot and its shape.
    pub fn unpack<const N: usize>(&self) -> Result<[Dim; N]> {
        let dims = <[Dim; N]>::try_from(&*self.dims);
        dims.map_err(|_| self.wrong(&format!("{N} dimensions are needed")))
    }

    /// Makes an output a dense tensor of this dtype and these dimensions.
    pub fn set(&mut self, dtype: DType, dims: impl Into<Dims>) {
        *self = Meta::new(dtype, dims).in_slot(self.slot);
    }

    /// Makes an output a dense tensor of the dtype and dimensions of `x`.
    pub fn like(&mut self, x: &Meta) {
        self.set(x.dtype, x.dims.clone());
    }

    /// The dense tensor for a row-sparse one.
    pub fn dense(self) -> Meta {
        Meta { rows: None, ..self }
    }

    /// Makes an output a tensor array with elements of the dtype and dimensions of `x`.
    pub fn array_of(&mut self, x: &Meta) {
        self.like(x);
        self.array = true;
    }

    /// Size in bytes; 0 for an array, which owns its memory; `None` while a dimension is unknown, or if the size
    /// exceeds the address space. The latter ignores dimensions of 0, as NumPy does: no product of some of a shape's
    /// dimensions overflows. Row-sparse tensors have row indices, in whole cache lines, followed by values. A tensor with
    /// dimensions that data decides has its shape first, and then room for the largest one.
    pub fn bytes(&self) -> Option<usize> {
        if self.array {
            return Some(0);
        }
        if self.is_decided() {
            let largest = Meta { dims: self.dims.bounds()?.as_slice().into(), ..self.clone() };
            return largest.bytes()?.checked_add(self.header_bytes()).filter(|_| self.rows.is_none());
        }
        let limit = |bytes: &usize| *bytes <= isize::MAX as usize / 2;
        let of = |n: Dim, size: usize| n.get()?.checked_mul(size).filter(limit);
        let product =
            |dims: &[Dim]| dims.iter().filter(|dim| **dim != 0).fold(1.into(), |n: Dim, dim| n * *dim);
        of(product(&self.dims), self.dtype.size())?;
        let whole = of(self.dims.numel(), self.dtype.size())?;
        let Some(rows) = self.rows else { return Some(whole) };
        let row = product(self.dims.get(1..)?);
        let (numbers, values) = (of(rows, size_of::<i64>())?, of(rows * row, self.dtype.size())?);
        let values = if self.dims.get(1..)?.iter().any(|dim| *dim == 0) { 0 } else { values };
        padded(numbers).checked_add(values).filter(limit)
    }

    /// Whether both can be the same variable: one dtype, compatible dimensions, and equal kinds (dense, row-sparse,
    /// array).
    pub fn agrees(&self, other: &Meta) -> bool {
        let rows = match (self.rows, other.rows) {
            (Some(a), Some(b)) => a.agrees(b),
            (a, b) => a == b,
        };
        self.dtype == other.dtype && self.dims.agrees(&other.dims) && rows && self.array == other.array
    }

    /// An error about this slot that quotes its dtype and shape: `` input `X`: a matrix is needed, not float32 [3] ``.
    pub fn wrong(&self, needed: &str) -> Error {
        Error::new(ErrorKind::Shape, format!("`{}`: {needed}, not {self}", self.slot))
    }

    /// Requires a condition for this slot; the error comes from [`wrong`](Meta::wrong).
    ///
    /// # Errors
    /// The condition does not hold.
    pub fn require(&self, holds: bool, needed: impl FnOnce() -> String) -> Result<()> {
        if holds { Ok(()) } else { Err(self.wrong(&needed())) }
    }

    /// Requires that no dimension and no number of rows is negative, as a difference in a shape rule may be.
    ///
    /// # Errors
    /// One is; names the slot.
    pub(crate) fn not_negative(&self) -> Result<()> {
        let negative = |what: String, n: i64| {
            Err(Error::new(ErrorKind::Shape, format!("`{}`: {what} is negative, {n}", self.slot)))
        };
        if let Some((i, n)) = self.dims.iter().enumerate().find_map(|(i, dim)| Some((i, dim.negative()?))) {
            return negative(format!("dimension {i}"), n);
        }
        match self.rows.and_then(|rows| rows.negative()) {
            Some(n) => negative("the number of rows".into(), n),
            None => Ok(()),
        }
    }

    /// Requires exactly one element.
    ///
    /// # Errors
    /// The error of [`wrong`](Meta::wrong).
    pub fn one_element(&self) -> Result<()> {
        self.require(self.dims.numel().agrees(1.into()), || "one element is needed".into())
    }

    /// Requires the dtype of `other`.
    ///
    /// # Errors
    /// Another dtype; names both slots and dtypes.
    pub fn same_dtype(&self, other: &Meta) -> Result<()> {
        if self.dtype == other.dtype {
            return Ok(());
        }
        let (s, o) = (self.slot, other.slot);
        Err(Error::new(
            ErrorKind::DType,
            format!("`{s}`: dtype {} does not match {} of `{o}`", self.dtype, other.dtype),
        ))
    }

    /// Requires the dtype and shape of `other`; unknown dimensions match anything.
    ///
    /// # Errors
    /// Another dtype or shape; names both slots with their dtypes or shapes.
    pub fn same_as(&self, other: &Meta) -> Result<()> {
        self.same_dtype(other)?;
        if self.dims.agrees(&other.dims) {
            return Ok(());
        }
        let (s, o, dims) = (self.slot, other.slot, &other.dims);
        let no_ones = |meta: &'_ Meta| meta.dims.iter().filter(|n| **n != 1).copied().collect::<Dims>();
        let hint = match no_ones(self) == no_ones(other) && dims.known().is_some() {
            true => format!("; reshape it to {dims}"),
            false => String::new(),
        };
        let text = format!("`{s}`: shape {} does not match {dims} of `{o}`{hint}", self.dims);
        Err(Error::new(ErrorKind::Shape, text))
    }

    /// Requires a floating point dtype.
    ///
    /// # Errors
    /// Another dtype; names the slot and its dtype.
    pub fn float(&self) -> Result<()> {
        if self.dtype.is_float() { Ok(()) } else { Err(self.wrong("floating point numbers are needed")) }
    }

    /// Requires a floating point dtype, int32 or int64.
    ///
    /// # Errors
    /// Another dtype; names the slot and its dtype.
    pub fn signed(&self) -> Result<()> {
        let signed = self.dtype.is_float() || self.dtype.is_signed_integer();
        self.require(signed, || "signed or floating point numbers are needed".into())
    }

    /// The index of a possibly negative axis.
    ///
    /// # Errors
    /// No such axis; names the attribute, the slot and its shape.
    pub fn axis(&self, attr: &str, axis: i64) -> Result<usize> {
        self.dims.axis(axis).ok_or_else(|| {
            Error::new(
                ErrorKind::Attr,
                format!(
                    "attribute `{attr}` = {axis}: `{}` of shape {} has no such axis",
                    self.slot, self.dims
                ),
            )
        })
    }
}
impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Meta { array: true, .. } => "array of ",
            Meta { rows: Some(_), .. } => "rows of ",
            _ => "",
        };
        write!(f, "{what}{} {}", self.dtype, self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_number_of_rows_is_refused() {
        let rows = |rows: Dim| Meta { rows: Some(rows), ..Meta::new(DType::F32, [3, 2]).in_slot("Out") };
        let e = rows(Dim::from(1) - 3).not_negative().unwrap_err();
        assert_eq!(e.message(), "`Out`: the number of rows is negative, -2");
        assert!([Dim::UNKNOWN, Dim::from(0)].iter().all(|n| rows(*n).not_negative().is_ok()));
    }
}
