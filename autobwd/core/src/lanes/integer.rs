//! Integer formulas as kernels: exact, without SIMD types.

use std::{any::Any, num::Wrapping};

use smallvec::SmallVec;

use super::{
    MAX_ARGS,
    broadcast::{aligned, broadcast_axis},
};
use crate::{
    Buf, Cx, DType, Element, Error, ErrorKind, IntegerLanes, Kernel, OpDesc, Result, Role, Schema, Shape,
    Var, numbers::Integer, runtime::CHUNK, schema::BufOf, tensor::Lease,
};

/// An operator's integer formula, bound to memory. Only the loop over a row is compiled per operator.
pub(crate) struct IntegerKernel {
    attrs: Box<dyn Any + Send + Sync>,
    i32_row: RowFn<i32>,
    i64_row: RowFn<i64>,
    inputs: SmallVec<[IntegerInput; 2]>,
    out: Buf<'static>,
    /// The dimensions of the output; operands of one shape form one row.
    full: Shape,
}

/// Computes adjacent elements of the output: attributes, inputs, the output.
type RowFn<T> = fn(&dyn Any, &[IntegerOperand<'_, T>], &mut [T]) -> Result<()>;

fn run_row<O: IntegerLanes, T: Element>(
    attrs: &dyn Any,
    operands: &[IntegerOperand<'_, T>],
    row: &mut [T],
) -> Result<()>
where
    Wrapping<T>: Integer,
{
    let attrs =
        attrs.downcast_ref::<O::Attrs>().ok_or_else(|| Error::internal("attributes of another operator"))?;
    for (i, out) in row.iter_mut().enumerate() {
        let own = *out;
        let get = |k: usize| {
            let IntegerOperand { elements, start, step } = &operands[k];
            Wrapping(elements.map_or(own, |x| x[start + i * step]))
        };
        *out = O::integer_lane(attrs, get)?.0;
    }
    Ok(())
}

impl IntegerKernel {
    pub(crate) fn kernel<O: IntegerLanes>(
        desc: &OpDesc,
        _: Lease,
        buf: BufOf<'_>,
    ) -> Result<Box<dyn Kernel + Send>> {
        let attrs = Box::new(O::attrs(desc)?);
        let rows = (run_row::<O, i32> as RowFn<i32>, run_row::<O, i64> as RowFn<i64>);
        IntegerKernel::bind(const { &O::SLOTS }, desc, buf, attrs, rows)
    }

    fn bind(
        schema: &'static Schema,
        desc: &OpDesc,
        buf: BufOf<'_>,
        attrs: Box<dyn Any + Send + Sync>,
        (i32_row, i64_row): (RowFn<i32>, RowFn<i64>),
    ) -> Result<Box<dyn Kernel + Send>> {
        let mut bufs: SmallVec<[(usize, Buf<'static>); 2]> = SmallVec::new();
        for (k, slot) in schema.inputs.iter().enumerate() {
            for var in desc.inputs.get(slot.name).iter().filter(|var| **var != Var::EMPTY) {
                bufs.push((k, buf(Role::Input, slot.name, *var)?));
            }
        }
        let slot = schema.outputs[0].name;
        let var = desc.outputs.get(slot).first().copied().unwrap_or(Var::EMPTY);
        let out = buf(Role::Output, slot, var)?;
        let axis = broadcast_axis(schema, desc);
        let equal = bufs.iter().all(|(_, input)| input.dims() == out.dims());
        let flat = [out.numel()];
        let row = |dims: &[usize]| Shape::from(if equal { &flat[..] } else { dims });
        let full = row(out.dims());
        let inputs = bufs.into_iter().map(|(slot, buf)| {
            let dims = row(buf.dims());
            IntegerInput::new(slot, buf, &dims, &full, axis)
        });
        let inputs = inputs.collect::<Result<_>>()?;
        Ok(Box::new(IntegerKernel { attrs, i32_row, i64_row, inputs, out, full }))
    }

    /// Rejects attributes that are not integers of this dtype, if it is an integer type.
    ///
    /// # Errors
    /// The errors of the formula about an attribute.
    pub(crate) fn check_attrs<O: IntegerLanes>(desc: &OpDesc, dtype: DType) -> Result<()> {
        let attrs = O::attrs(desc)?;
        let outcome = match dtype {
            DType::I32 => O::integer_lane(&attrs, |_| Wrapping(1_i32)).map(drop),
            DType::I64 => O::integer_lane(&attrs, |_| Wrapping(1_i64)).map(drop),
            _ => Ok(()),
        };
        outcome.or_else(|e| if e.kind() == ErrorKind::Attr { Err(e) } else { Ok(()) })
    }

    fn each<T: Element>(&mut self, run_row: RowFn<T>, cx: &Cx) -> Result<()> {
        let IntegerKernel { attrs, inputs, out, full, .. } = self;
        let (attrs, inputs, full) = (&**attrs, &*inputs, &*full);
        // By the index of their slots; there are no more than fit without an allocation.
        let mut operands: SmallVec<[IntegerOperand<'_, T>; MAX_ARGS]> = SmallVec::new();
        for input in inputs {
            operands.resize(input.slot + 1, IntegerOperand::default());
            let elements = if input.buf.is_taken_over() { None } else { Some(input.buf.slice()?) };
            operands[input.slot] = IntegerOperand { elements, start: 0, step: input.step };
        }
        let width = full.last().copied().unwrap_or(1);
        cx.try_chunks_mut(out.slice_mut::<T>()?, CHUNK, &mut [(); 0], |part, mut rest, _| {
            let (mut at, mut operands) = (part * CHUNK, operands.clone());
            while !rest.is_empty() {
                let (row, column) = (at / width, at % width);
                let (piece, tail) = rest.split_at_mut((width - column).min(rest.len()));
                for input in inputs {
                    operands[input.slot].start = input.start(full, row) + column * input.step;
                }
                run_row(attrs, &operands, piece)?;
                at += piece.len();
                rest = tail;
            }
            Ok(())
        })
    }
}

impl Kernel for IntegerKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        match self.out.dtype() {
            DType::I32 => self.each(self.i32_row, cx),
            DType::I64 => self.each(self.i64_row, cx),
            _ => Err(self.out.wrong("int32 or int64 is needed")),
        }
    }
}

/// An input, and where the output's elements read it.
struct IntegerInput {
    /// The index of the slot in the schema.
    slot: usize,
    buf: Buf<'static>,
    /// The stride for each dimension of the output but the last; 0 where the input is broadcast.
    strides: Shape,
    /// The stride for the last dimension.
    step: usize,
}

impl IntegerInput {
    fn new(
        slot: usize,
        buf: Buf<'static>,
        dims: &[usize],
        full: &[usize],
        axis: Option<usize>,
    ) -> Result<IntegerInput> {
        let own = aligned(dims, full.len(), axis, 1)
            .ok_or_else(|| Error::internal("an operand that does not broadcast"))?;
        let (mut strides, mut stride) = (own.clone(), 1);
        for (place, n) in strides.iter_mut().zip(&own).rev() {
            *place = if *n == 1 { 0 } else { stride };
            stride *= n;
        }
        let step = strides.pop().unwrap_or(0);
        Ok(IntegerInput { slot, buf, strides, step })
    }

    /// The start of its elements for a row of the output.
    fn start(&self, full: &[usize], mut row: usize) -> usize {
        let mut start = 0;
        for (stride, n) in self.strides.iter().zip(full).rev() {
            start += row % n * stride;
            row /= n;
        }
        start
    }
}

/// An input for a part of a row.
#[derive(Clone, Default)]
struct IntegerOperand<'a, T> {
    /// `None` if it shares the output's memory.
    elements: Option<&'a [T]>,
    start: usize,
    step: usize,
}
