//! Copies of tensors that convert 16-bit floating point numbers to `f32` and back.

use half::{bf16, f16};

use super::dispatch::{LaneOf, VectorLoops, Vectorised};
use crate::{
    Buf, Cx, DType, Element, Result,
    runtime::CHUNK,
    tensor::half_float::{HalfFloat, with_half},
};

/// Whether [`copy_converted`] converts between these dtypes.
pub(crate) fn converts(from: DType, to: DType) -> bool {
    from.is_half() && to == DType::F32 || from == DType::F32 && to.is_half()
}

/// `out = x` for a 16-bit floating point dtype and `f32`, in either direction; row-sparse tensors keep their rows,
/// and those with dimensions that data decides their shape.
///
/// # Errors
/// Other dtypes; memory that cannot be read or written.
pub fn copy_converted(cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
    with_half!(x.dtype(), T => copy::<T, f32>(cx, x, out), _ => {
        with_half!(out.dtype(), T => copy::<f32, T>(cx, x, out), _ => Err(x.wrong("16 bits are needed")))
    })
}

fn copy<X: ConvertsTo<Y>, Y: Element>(cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
    let (from, to) = if x.is_sparse() {
        let (numbers, to) = out.rows_mut::<Y>()?;
        let rows = x.rows::<X>()?;
        let there = rows.indices().len().min(numbers.len());
        numbers.fill(-1);
        numbers[..there].copy_from_slice(&rows.indices()[..there]);
        (rows.values(), to)
    } else if x.decided_dims().is_some() {
        let (dims, from) = x.decided::<X>()?;
        (from, out.decide::<Y>(&dims)?)
    } else {
        (x.slice::<X>()?, out.slice_mut::<Y>()?)
    };
    let n = from.len().min(to.len());
    cx.chunks_mut(&mut to[..n], CHUNK, |part, to| f32::vectorised(Converting(&from[part * CHUNK..], to)));
    Ok(())
}

/// Conversion of an element.
trait ConvertsTo<Y>: Element {
    fn convert(self) -> Y;
}
impl<T: HalfFloat> ConvertsTo<f32> for T {
    #[inline(always)]
    fn convert(self) -> f32 {
        self.single()
    }
}
impl ConvertsTo<f16> for f32 {
    #[inline(always)]
    fn convert(self) -> f16 {
        f16::round(self)
    }
}
impl ConvertsTo<bf16> for f32 {
    #[inline(always)]
    fn convert(self) -> bf16 {
        bf16::round(self)
    }
}

struct Converting<'a, X, Y>(&'a [X], &'a mut [Y]);
impl<X: ConvertsTo<Y>, Y> VectorLoops<f32> for Converting<'_, X, Y> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<f32>>(self) {
        self.1.iter_mut().zip(self.0).for_each(|(to, from)| *to = from.convert());
    }
}
