//! Gathering and scattering by indices.

use super::{Hlo, Reduction, Window};

/// How slices of an operand are placed in the result of a gather.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherDims {
    /// Dimensions of the result that are dimensions of a slice.
    pub offset: Vec<usize>,
    /// Dimensions of the operand that a slice lacks: their size is 1.
    pub collapsed: Vec<usize>,
    /// The dimension of the operand that each number of an index is for.
    pub start_index_map: Vec<usize>,
    /// The dimension of the indices that holds the numbers of an index; their rank if each is one number.
    pub index_vector: usize,
}

/// How slices of updates are placed in the operand of a scatter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScatterDims {
    /// Dimensions of the updates that are dimensions of a slice.
    pub window: Vec<usize>,
    /// Dimensions of the operand that a slice lacks.
    pub inserted: Vec<usize>,
    /// The dimension of the operand that each number of an index is for.
    pub index_map: Vec<usize>,
    /// The dimension of the indices that holds the numbers of an index; their rank if each is one number.
    pub index_vector: usize,
}

impl Hlo {
    /// Slices of these sizes at indices, which are moved into the operand. The result has these dimensions.
    #[must_use]
    pub fn gather(&self, indices: &Hlo, by: &GatherDims, sizes: &[usize], dims: &[usize]) -> Hlo {
        if self.numel() == 0 {
            // A slice of one element is too large for a dimension without elements.
            return self.full(self.dtype(), dims, 0.0);
        }
        let GatherDims { offset, collapsed, start_index_map, index_vector } = by;
        let ty = self.in_dims(dims);
        let text = format!(
            "\"stablehlo.gather\"({self}, {indices}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {offset:?}, \
             collapsed_slice_dims = {collapsed:?}, start_index_map = {start_index_map:?}, index_vector_dim = \
             {index_vector}>, slice_sizes = {}, indices_are_sorted = false}}> : ({}, {}) -> {ty}",
            Window::array(sizes),
            self.ty,
            indices.ty
        );
        self.emit(ty, text)
    }

    /// The value with slices of `updates` combined into it at indices; slices that do not fit are left out. With `None`,
    /// a slice replaces the elements; which one of several does is not defined.
    #[must_use]
    pub fn scatter(&self, indices: &Hlo, updates: &Hlo, by: &ScatterDims, combine: Option<Reduction>) -> Hlo {
        let ScatterDims { window, inserted, index_map, index_vector } = by;
        let body = self.combiner(self.dtype(), |x, y| combine.map_or(y.clone(), |by| by.combine(x, y)));
        let text = format!(
            "\"stablehlo.scatter\"({self}, {indices}, {updates}) <{{scatter_dimension_numbers = \
             #stablehlo.scatter<update_window_dims = {window:?}, inserted_window_dims = {inserted:?}, \
             scatter_dims_to_operand_dims = {index_map:?}, index_vector_dim = {index_vector}>, indices_are_sorted = \
             false, unique_indices = false}}> ({body}) : ({}, {}, {}) -> {}",
            self.ty, indices.ty, updates.ty, self.ty
        );
        self.emit(self.ty.clone(), text)
    }

    /// Rows: slices along an axis at these indices, whose dimensions take the place of the axis.
    #[must_use]
    pub fn rows(&self, axis: usize, indices: &Hlo) -> Hlo {
        let (before, after) = (&self.dims()[..axis], &self.dims()[axis + 1..]);
        let dims: Vec<usize> = before.iter().chain(indices.dims()).chain(after).copied().collect();
        let mut sizes = self.dims().to_vec();
        sizes[axis] = 1;
        let behind = axis + indices.rank();
        let by = GatherDims {
            offset: (0..axis).chain(behind..dims.len()).collect(),
            collapsed: vec![axis],
            start_index_map: vec![axis],
            index_vector: indices.rank(),
        };
        self.gather(indices, &by, &sizes, &dims)
    }

    /// Adds slices to the rows along an axis at these indices: the gradient of [`rows`](Hlo::rows).
    #[must_use]
    pub fn add_rows(&self, axis: usize, indices: &Hlo, updates: &Hlo) -> Hlo {
        self.scatter(indices, updates, &self.row_dims(axis, indices), Some(Reduction::Sum))
    }

    /// Where the slices of [`rows`](Hlo::rows) belong.
    #[must_use]
    pub fn row_dims(&self, axis: usize, indices: &Hlo) -> ScatterDims {
        let behind = axis + indices.rank();
        ScatterDims {
            window: (0..axis).chain(behind..self.rank() - 1 + indices.rank()).collect(),
            inserted: vec![axis],
            index_map: vec![axis],
            index_vector: indices.rank(),
        }
    }

    /// The elements along an axis at these indices, which have the rank of the value and, but for the axis, its
    /// dimensions.
    #[must_use]
    pub fn along(&self, axis: usize, indices: &Hlo) -> Hlo {
        if self.rank() == 0 {
            return self.clone();
        }
        // An operand without elements has none to slice.
        if indices.numel() == 0 {
            return indices.full_like(0.0).convert(self.dtype());
        }
        let positions = self.positions(axis, indices);
        let rank = self.rank();
        let by = GatherDims {
            offset: vec![],
            collapsed: (0..rank).collect(),
            start_index_map: (0..rank).collect(),
            index_vector: rank,
        };
        self.gather(&positions, &by, &vec![1; rank], indices.dims())
    }

    /// Combines elements into those along an axis at these indices, as [`along`](Hlo::along) reads them.
    #[must_use]
    pub fn scatter_along(
        &self,
        axis: usize,
        indices: &Hlo,
        updates: &Hlo,
        combine: Option<Reduction>,
    ) -> Hlo {
        if self.rank() == 0 {
            return combine.map_or(updates.clone(), |by| by.combine(self, updates));
        }
        let (positions, rank) = (self.positions(axis, indices), self.rank());
        let by = ScatterDims {
            window: vec![],
            inserted: (0..rank).collect(),
            index_map: (0..rank).collect(),
            index_vector: rank,
        };
        self.scatter(&positions, updates, &by, combine)
    }

    /// Full indices, in a new last dimension: those of `indices` along the axis, its positions in the other dimensions.
    fn positions(&self, axis: usize, indices: &Hlo) -> Hlo {
        let one: Vec<usize> = indices.dims().iter().copied().chain([1]).collect();
        let numbers = (0..self.rank()).map(|i| match i == axis {
            true => indices.reshape(&one),
            false => indices.iota(indices.dtype(), &one, i),
        });
        Hlo::concat(&numbers.collect::<Vec<_>>(), self.rank()).unwrap_or_else(|| indices.clone())
    }
}
