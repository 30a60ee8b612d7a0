//! Integers that programs give either as an attribute or as tensors, in slots declared `constant`.

use smallvec::SmallVec;

use super::MAX_RANK;
use crate::{Buf, DType, Dim, Error, Meta, Result};

/// An input in a slot declared `constant`, of a shape rule or of a kernel.
pub trait ConstantInput {
    /// Its elements, if known.
    fn elements(&self) -> Option<&[f64]>;
    /// Element type.
    fn element_type(&self) -> DType;
    /// Number of elements.
    fn count(&self) -> Dim;
    /// An error about its slot.
    fn refuse(&self, needed: &str) -> Error;
}

impl ConstantInput for Meta {
    fn elements(&self) -> Option<&[f64]> {
        self.constant()
    }
    fn element_type(&self) -> DType {
        self.dtype
    }
    fn count(&self) -> Dim {
        self.dims.numel()
    }
    fn refuse(&self, needed: &str) -> Error {
        self.wrong(needed)
    }
}

impl ConstantInput for Buf<'_> {
    fn elements(&self) -> Option<&[f64]> {
        self.constant()
    }
    fn element_type(&self) -> DType {
        self.dtype()
    }
    fn count(&self) -> Dim {
        self.numel().into()
    }
    fn refuse(&self, needed: &str) -> Error {
        self.wrong(needed)
    }
}

/// Integers, `None` where unknown until the program is planned.
pub type ConstantInts = SmallVec<[Option<i64>; MAX_RANK]>;

/// The integers that a list of tensors with one element each gives, or else a tensor, or else an attribute.
///
/// While elements are unknown, so are the integers; there are as many as tensors, or as elements of the attribute.
///
/// # Errors
/// A tensor of another dtype than int32 and int64; a tensor in the list with more or less than one element; an unknown
/// number of integers.
pub fn constant_ints<C: ConstantInput>(
    list: &[C],
    tensor: Option<&C>,
    attr: impl ExactSizeIterator<Item = i64>,
) -> Result<ConstantInts> {
    let integers = |given: &C| match given.element_type() {
        DType::I32 | DType::I64 => Ok(()),
        _ => Err(given.refuse("int32 or int64 is needed")),
    };
    if !list.is_empty() {
        let one = |given: &C| {
            integers(given)?;
            if !given.count().agrees(1.into()) {
                return Err(given.refuse("one element is needed"));
            }
            Ok(given.elements().and_then(|elements| elements.first()).map(|x| *x as i64))
        };
        return list.iter().map(one).collect();
    }
    let Some(given) = tensor else { return Ok(attr.map(Some).collect()) };
    integers(given)?;
    if let Some(elements) = given.elements() {
        return Ok(elements.iter().map(|x| Some(*x as i64)).collect());
    }
    match (given.count().get(), attr.len()) {
        (Some(count), _) if count <= crate::tensor::MAX_CONSTANT => Ok(SmallVec::from_elem(None, count)),
        (None, count) if count > 0 => Ok(SmallVec::from_elem(None, count)),
        _ => Err(given.refuse("a known small number of elements is needed")),
    }
}

/// As [`constant_ints`], but the tensor takes precedence over the list.
///
/// # Errors
/// As [`constant_ints`].
pub fn constant_ints_of_tensor<C: ConstantInput>(
    tensor: Option<&C>,
    list: &[C],
    attr: impl ExactSizeIterator<Item = i64>,
) -> Result<ConstantInts> {
    constant_ints(if tensor.is_some() { &[] } else { list }, tensor, attr)
}

/// The integer that a tensor gives, or else an attribute; `None` if unknown until the program is planned.
///
/// # Errors
/// As [`constant_ints`].
pub fn constant_int<C: ConstantInput>(tensor: Option<&C>, attr: i64) -> Result<Option<i64>> {
    let list = tensor.map(std::slice::from_ref).unwrap_or_default();
    Ok(constant_ints(list, None, [attr].into_iter())?.first().copied().flatten())
}

/// The same for a kernel, which runs when it is known.
///
/// # Errors
/// As [`constant_ints`].
pub fn known_int(tensor: Option<&Buf<'_>>, attr: i64) -> Result<i64> {
    constant_int(tensor, attr)?.ok_or_else(|| Error::internal("an unknown constant"))
}
