//! Integer formulas as kernels: exact, without SIMD types.

use std::{any::Any, num::Wrapping};

use smallvec::SmallVec;

use super::broadcast::{aligned, broadcast_axis};
use crate::{
    Buf, Cx, DType, Element, Error, ErrorKind, IntegerLanes, Kernel, OpDesc, Result, Role, Schema, Shape,
    Var, numbers::Integer, runtime::CHUNK, schema::BufOf, tensor::Lease,
};

/// An operator's integer formula, bound to memory. Only the loop over a row is compiled per operator.
pub(crate) struct IntegerKernel {
    attrs: Box<dyn Any + Send + Sync>,
    i32_row: RowFn<i32>,
    i64_row: RowFn<i64>,
    /// With their indices in the schema.
    inputs: SmallVec<[(usize, Buf<'static>); 2]>,
    out: Buf<'static>,
    axis: Option<usize>,
}

/// Computes adjacent elements of the output: attributes, inputs, the first element of each, the output.
type RowFn<T> = fn(&dyn Any, &[IntegerOperand<'_, T>], &[usize], &mut [T]) -> Result<()>;

fn run_row<O: IntegerLanes, T: Element>(
    attrs: &dyn Any,
    operands: &[IntegerOperand<'_, T>],
    starts: &[usize],
    row: &mut [T],
) -> Result<()>
where
    Wrapping<T>: Integer,
{
    let attrs =
        attrs.downcast_ref::<O::Attrs>().ok_or_else(|| Error::internal("attributes of another operator"))?;
    for (i, out) in row.iter_mut().enumerate() {
        let own = *out;
        let get = |k: usize| match operands[k].elements {
            Some(x) => Wrapping(x[starts[k] + i * operands[k].step]),
            None => Wrapping(own),
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
        let mut inputs = SmallVec::new();
        for (k, slot) in schema.inputs.iter().enumerate() {
            for var in desc.inputs.get(slot.name).iter().filter(|var| **var != Var::EMPTY) {
                inputs.push((k, buf(Role::Input, slot.name, *var)?));
            }
        }
        let slot = schema.outputs[0].name;
        let var = desc.outputs.get(slot).first().copied().unwrap_or(Var::EMPTY);
        let out = buf(Role::Output, slot, var)?;
        let axis = broadcast_axis(schema, desc);
        Ok(Box::new(IntegerKernel { attrs, i32_row, i64_row, inputs, out, axis }))
    }

    /// Rejects attributes that are not integers of this dtype, if it is an integer type.
    ///
    /// # Errors
    /// Those of the formula about an attribute.
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
        let IntegerKernel { attrs, inputs, out, axis, .. } = self;
        let attrs = &**attrs;
        // Operands of one shape form one row.
        let equal = inputs.iter().all(|(_, input)| input.dims() == out.dims());
        let flat = [out.numel()];
        let row = |dims: &[usize]| Shape::from(if equal { &flat[..] } else { dims });
        let full = row(out.dims());
        let mut operands: SmallVec<[IntegerOperand<'_, T>; 4]> = SmallVec::new();
        for (k, input) in inputs.iter() {
            operands.resize(*k + 1, IntegerOperand::default());
            operands[*k] = IntegerOperand::new(input, &row(input.dims()), &full, *axis)?;
        }
        let width = full.last().copied().unwrap_or(1);
        cx.try_chunks_mut(out.slice_mut::<T>()?, CHUNK, &mut [(); 0], |part, mut rest, _| {
            let mut at = part * CHUNK;
            while !rest.is_empty() {
                let (row, column) = (at / width, at % width);
                let (piece, tail) = rest.split_at_mut((width - column).min(rest.len()));
                let start =
                    |operand: &IntegerOperand<'_, T>| operand.start(&full, row) + column * operand.step;
                let starts: SmallVec<[usize; 4]> = operands.iter().map(start).collect();
                run_row(attrs, &operands, &starts, piece)?;
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

/// An input as read by the output's elements.
#[derive(Clone, Default)]
struct IntegerOperand<'a, T> {
    /// `None` if it shares the output's memory.
    elements: Option<&'a [T]>,
    /// The stride for each dimension of the output but the last; 0 where the input is broadcast.
    strides: Shape,
    /// The stride for the last dimension.
    step: usize,
}

impl<'a, T: Element> IntegerOperand<'a, T> {
    fn new(
        input: &'a Buf<'_>,
        dims: &[usize],
        full: &[usize],
        axis: Option<usize>,
    ) -> Result<IntegerOperand<'a, T>> {
        let elements = if input.is_taken_over() { None } else { Some(input.slice()?) };
        let own = aligned(dims, full.len(), axis, 1)
            .ok_or_else(|| Error::internal("an operand that does not broadcast"))?;
        let (mut strides, mut stride) = (own.clone(), 1);
        for (place, n) in strides.iter_mut().zip(&own).rev() {
            *place = if *n == 1 { 0 } else { stride };
            stride *= n;
        }
        let step = strides.pop().unwrap_or(0);
        Ok(IntegerOperand { elements, strides, step })
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
