//! Reading and writing at indices.

use autobwd_ops::{
    embedding::{LookupTable, LookupTableGrad, LookupTableV2, LookupTableV2Grad},
    gather::{Gather, GatherGrad, OneHotV2},
    index::{IndexSample, IndexSampleGrad, IndexSelect, IndexSelectGrad, ScatterNdAdd, ScatterNdAddGrad},
    scatter::{GatherNd, GatherNdGrad, Scatter, TakeAlongAxis, TakeAlongAxisGrad},
};

use super::prelude::*;
use crate::lower::{GatherDims, ScatterDims};

family!(
    Gather,
    GatherGrad,
    GatherNd,
    GatherNdGrad,
    IndexSample,
    IndexSampleGrad,
    IndexSelect,
    IndexSelectGrad,
    LookupTable,
    LookupTableGrad,
    LookupTableV2,
    LookupTableV2Grad,
    OneHotV2,
    Scatter,
    ScatterNdAdd,
    ScatterNdAddGrad,
    TakeAlongAxis,
    TakeAlongAxisGrad
);

fn flat(index: &Hlo) -> Hlo {
    index.reshape(&[index.numel()])
}

/// Zeros with `updates` added to the rows along an axis at these indices, in the type of `slot`.
fn added_rows(slot: &Hlo, axis: usize, index: &Hlo, updates: &Hlo) -> Hlo {
    let index = flat(index);
    let mut dims = slot.dims().to_vec();
    dims[axis] = index.numel();
    slot.full_like(0.0).add_rows(axis, &index, &updates.reshape(&dims))
}

impl Lower for Gather<Hlo> {
    fn lower(&mut self) {
        self.out = self.x.rows(self.x.axis(self.axis), &flat(&self.index));
    }
}
impl Lower for GatherGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = added_rows(&self.dx, self.dx.axis(self.axis), &self.index, &self.dout);
    }
}
impl Lower for IndexSelect<Hlo> {
    fn lower(&mut self) {
        self.out = self.x.rows(self.x.axis(self.dim), &flat(&self.index));
    }
}
impl Lower for IndexSelectGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = added_rows(&self.dx, self.dx.axis(self.dim), &self.index, &self.dout);
    }
}

/// Rows of a table; those of the index `padding` are 0.
fn look_up(table: &Hlo, ids: &Hlo, padding: i64) -> Hlo {
    let ids = flat(ids);
    let rows = table.rows(0, &ids);
    without_padding(&rows, &ids, padding)
}

/// 0 in the rows of the index `padding`.
fn without_padding(rows: &Hlo, ids: &Hlo, padding: i64) -> Hlo {
    if padding == -1 {
        return rows.clone();
    }
    let is_padding = ids.equal(&ids.full_like(padding as f64)).broadcast(rows.dims(), &[0]);
    is_padding.select(&rows.full_like(0.0), rows)
}

fn table_gradient(dw: &Hlo, ids: &Hlo, dout: &Hlo, padding: i64) -> Hlo {
    let (ids, width) = (flat(ids), dw.dims()[1]);
    let rows = without_padding(&dout.reshape(&[ids.numel(), width]), &ids, padding);
    added_rows(dw, 0, &ids, &rows)
}

impl Lower for LookupTable<Hlo> {
    fn lower(&mut self) {
        self.out = look_up(&self.w, &self.ids, self.padding_idx);
    }
}
impl Lower for LookupTableGrad<Hlo> {
    fn lower(&mut self) {
        self.dw = table_gradient(&self.dw, &self.ids, &self.dout, self.padding_idx);
    }
}
impl Lower for LookupTableV2<Hlo> {
    fn lower(&mut self) {
        self.out = look_up(&self.w, &self.ids, self.padding_idx);
    }
}
impl Lower for LookupTableV2Grad<Hlo> {
    fn lower(&mut self) {
        self.dw = table_gradient(&self.dw, &self.ids, &self.dout, self.padding_idx);
    }
}

impl Lower for OneHotV2<Hlo> {
    fn lower(&mut self) {
        let axis = self.out.rank() - 1;
        let x = self.x.reshape(&self.out.dims()[..axis]);
        let axes: Vec<usize> = (0..axis).collect();
        self.out = x.one_hot(self.out.dims(), axis, &axes).convert(self.out.dtype());
    }
}

/// Where an element is that of the only index along the axis. A comparison is faster than a gather: a loss over labels takes
/// 0.7 of the time on the CPU.
fn at_single_index(dims: &[usize], index: &Hlo, axis: usize) -> Hlo {
    let others: Vec<usize> = (0..dims.len()).filter(|i| *i != axis).collect();
    let lanes: Vec<usize> = others.iter().map(|i| dims[*i]).collect();
    index.reshape(&lanes).one_hot(dims, axis, &others)
}

impl Lower for TakeAlongAxis<Hlo> {
    fn lower(&mut self) {
        let (x, axis) = (&self.input, self.input.axis(self.axis));
        let is_single = x.rank() > 0 && x.dtype().is_float() && self.index.dims()[axis] == 1;
        self.result = match is_single {
            true => at_single_index(x.dims(), &self.index, axis).select(x, &x.full_like(0.0)).sum(&[axis]),
            false => x.along(axis, &self.index),
        };
    }
}
impl Lower for TakeAlongAxisGrad<Hlo> {
    fn lower(&mut self) {
        let (zeros, axis) = (self.dinput.full_like(0.0), self.dinput.axis(self.axis));
        let is_single = zeros.rank() > 0 && self.index.dims()[axis] == 1;
        self.dinput = match is_single {
            true => at_single_index(zeros.dims(), &self.index, axis)
                .select(&self.dresult.spread(zeros.dims(), &[axis]), &zeros),
            false => zeros.scatter_along(axis, &self.index, &self.dresult, Some(Reduction::Sum)),
        };
    }
}
impl Lower for IndexSample<Hlo> {
    fn lower(&mut self) {
        self.out = self.x.along(1, &self.index);
    }
}
impl Lower for IndexSampleGrad<Hlo> {
    fn lower(&mut self) {
        let zeros = self.dx.full_like(0.0);
        self.dx = zeros.scatter_along(1, &self.index, &self.dout, Some(Reduction::Sum));
    }
}

/// The parts of `x` at indices of its first dimensions, which are the last dimension of `index`; negative ones count from
/// the end.
struct IndexedParts {
    index: Hlo,
    /// Numbers in an index.
    depth: usize,
    /// Dimensions of the indices, without their last.
    outer: usize,
}

impl IndexedParts {
    fn of(dims: &[usize], index: &Hlo) -> IndexedParts {
        let outer = index.rank().saturating_sub(1);
        let depth = index.dims().last().copied().unwrap_or(0);
        let lengths: Vec<f64> = dims[..depth].iter().map(|n| *n as f64).collect();
        let lengths = index.vector(index.dtype(), &lengths).broadcast(index.dims(), &[outer]);
        let is_negative = index.less(&index.full_like(0.0));
        IndexedParts { index: is_negative.select(&(index + lengths), index), depth, outer }
    }

    fn take(&self, x: &Hlo) -> Hlo {
        let inner = &x.dims()[self.depth..];
        let dims: Vec<usize> = self.index.dims()[..self.outer].iter().chain(inner).copied().collect();
        let sizes: Vec<usize> = vec![1; self.depth].iter().chain(inner).copied().collect();
        let by = GatherDims {
            offset: (self.outer..dims.len()).collect(),
            collapsed: (0..self.depth).collect(),
            start_index_map: (0..self.depth).collect(),
            index_vector: self.outer,
        };
        x.gather(&self.index, &by, &sizes, &dims)
    }

    fn add(&self, x: &Hlo, updates: &Hlo) -> Hlo {
        let inner = &x.dims()[self.depth..];
        let dims: Vec<usize> = self.index.dims()[..self.outer].iter().chain(inner).copied().collect();
        let by = ScatterDims {
            window: (self.outer..dims.len()).collect(),
            inserted: (0..self.depth).collect(),
            index_map: (0..self.depth).collect(),
            index_vector: self.outer,
        };
        x.scatter(&self.index, &updates.reshape(&dims), &by, Some(Reduction::Sum))
    }
}

impl Lower for GatherNd<Hlo> {
    fn lower(&mut self) {
        self.out = IndexedParts::of(self.x.dims(), &self.index).take(&self.x);
    }
}
impl Lower for GatherNdGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = IndexedParts::of(self.dx.dims(), &self.index).add(&self.dx.full_like(0.0), &self.dout);
    }
}
impl Lower for ScatterNdAdd<Hlo> {
    fn lower(&mut self) {
        self.out = IndexedParts::of(self.x.dims(), &self.index).add(&self.x, &self.updates);
    }
}
impl Lower for ScatterNdAddGrad<Hlo> {
    fn lower(&mut self) {
        if let Some(dx) = &mut self.dx {
            *dx = self.dout.clone();
        }
        if let Some(dupdates) = &mut self.dupdates {
            *dupdates = IndexedParts::of(self.dout.dims(), &self.index).take(&self.dout);
        }
    }
}

impl Lower for Scatter<Hlo> {
    fn lower(&mut self) {
        let ids = flat(&self.ids);
        let mut dims = self.x.dims().to_vec();
        dims[0] = ids.numel();
        let updates = self.updates.reshape(&dims);
        let by = self.x.row_dims(0, &ids);
        self.out = if ids.numel() == 0 {
            self.x.clone()
        } else if self.overwrite {
            // The last of several updates of a row is written, as the order of updates is that of `while`.
            let set = |out: &Hlo, i: &Hlo| out.set_at(&ids.at(i), &updates.at(i));
            let count = ids.scalar(0.0).convert(HloDType::I32);
            let end = count.full_like(dims[0] as f64);
            let states = [count, self.x.clone()];
            let next = |state: &[Hlo]| vec![&state[0] + 1.0, set(&state[1], &state[0])];
            Hlo::while_loop(&states, |state| state[0].less(&end), next).swap_remove(1)
        } else {
            let cleared = self.x.scatter(&ids, &updates.full_like(0.0), &by, None);
            cleared.scatter(&ids, &updates, &by, Some(Reduction::Sum))
        };
    }
}
