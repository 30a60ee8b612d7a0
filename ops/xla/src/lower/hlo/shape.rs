//! Shapes: reshaping, broadcasting, permuting, slicing and padding.

use super::{Hlo, types::list};

impl Hlo {
    /// The elements in other dimensions.
    #[must_use]
    pub fn reshape(&self, dims: &[usize]) -> Hlo {
        if dims == self.dims() {
            return self.clone();
        }
        if dims.iter().product::<usize>() != self.numel() {
            self.fail(format!("{} in the shape {dims:?}", self.ty));
        }
        if let Some(rearranged) = self.rearranged(|narrow| narrow.reshape(dims)) {
            return rearranged;
        }
        let ty = self.in_dims(dims);
        self.emit(ty.clone(), format_args!("stablehlo.reshape {self} : ({}) -> {ty}", self.ty))
    }

    /// Broadcast to these dimensions; `axes` says where those of the value are among them. Dimensions of 1 are broadcast,
    /// too.
    #[must_use]
    pub fn broadcast(&self, dims: &[usize], axes: &[usize]) -> Hlo {
        if dims == self.dims() {
            return self.clone();
        }
        let fits = |(own, axis): (&usize, &usize)| dims.get(*axis).is_some_and(|dim| own == dim || *own == 1);
        if axes.len() != self.rank() || !self.dims().iter().zip(axes).all(fits) {
            self.fail(format!("{} broadcast to {dims:?}", self.ty));
        }
        if let Some(rearranged) = self.rearranged(|narrow| narrow.broadcast(dims, axes)) {
            return rearranged;
        }
        let ty = self.in_dims(dims);
        let text = format!("stablehlo.broadcast_in_dim {self}, dims = {axes:?} : ({}) -> {ty}", self.ty);
        self.emit(ty, text)
    }

    /// Broadcast to these dimensions; the last ones are those of the value, as in NumPy.
    #[must_use]
    pub fn broadcast_to(&self, dims: &[usize]) -> Hlo {
        let Some(first) = dims.len().checked_sub(self.rank()) else {
            self.fail(format!("{} broadcast to {dims:?}", self.ty));
            return self.clone();
        };
        self.broadcast(dims, &(first..dims.len()).collect::<Vec<_>>())
    }

    /// A reduction over axes that were kept as 1, in all positions of these dimensions; without them, they are inserted.
    #[must_use]
    pub fn spread(&self, dims: &[usize], axes: &[usize]) -> Hlo {
        let mut kept = dims.to_vec();
        kept.iter_mut().enumerate().filter(|(axis, _)| axes.contains(axis)).for_each(|(_, dim)| *dim = 1);
        let others: Vec<usize> = (0..dims.len()).filter(|axis| !axes.contains(axis)).collect();
        let shape: Vec<usize> = others.iter().map(|axis| dims[*axis]).collect();
        self.reshape(&shape).broadcast(dims, &others)
    }

    /// The sum over the dimensions that broadcasting from `dims`, aligned at the end, has extended.
    #[must_use]
    pub fn sum_to(&self, dims: &[usize]) -> Hlo {
        let Some(first) = self.rank().checked_sub(dims.len()) else {
            self.fail(format!("{} summed to {dims:?}", self.ty));
            return self.clone();
        };
        let is_summed = |axis: &usize| match axis.checked_sub(first) {
            None => true,
            Some(own) => dims[own] == 1 && self.dims()[*axis] != 1,
        };
        let axes: Vec<usize> = (0..self.rank()).filter(is_summed).collect();
        self.sum(&axes).reshape(dims)
    }

    /// The dimensions in another order: dimension i of the result is dimension `order[i]` of the value.
    #[must_use]
    pub fn transpose(&self, order: &[usize]) -> Hlo {
        if order.iter().copied().eq(0..self.rank()) {
            return self.clone();
        }
        let Some(dims) = order.iter().map(|axis| self.dims().get(*axis).copied()).collect::<Option<Vec<_>>>()
        else {
            self.fail(format!("{} in the order {order:?}", self.ty));
            return self.clone();
        };
        if let Some(rearranged) = self.rearranged(|narrow| narrow.transpose(order)) {
            return rearranged;
        }
        let ty = self.in_dims(&dims);
        self.emit(
            ty.clone(),
            format_args!("stablehlo.transpose {self}, dims = {order:?} : ({}) -> {ty}", self.ty),
        )
    }

    /// Matrices with rows and columns exchanged.
    #[must_use]
    pub fn transposed(&self) -> Hlo {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        if let [.., a, b] = &mut order[..] {
            std::mem::swap(a, b);
        }
        self.transpose(&order)
    }

    /// One axis moved to another position.
    #[must_use]
    pub fn move_axis(&self, from: usize, to: usize) -> Hlo {
        let mut order: Vec<usize> = (0..self.rank()).filter(|axis| *axis != from).collect();
        order.insert(to.min(order.len()), from);
        self.transpose(&order)
    }

    /// The elements from `starts` to before `ends`, every `steps`-th.
    #[must_use]
    pub fn slice(&self, starts: &[usize], ends: &[usize], steps: &[usize]) -> Hlo {
        let fits = |i: usize| starts[i] <= ends[i] && ends[i] <= self.dims()[i] && steps[i] > 0;
        let lengths = [starts.len(), ends.len(), steps.len()];
        if lengths != [self.rank(); 3] || !(0..self.rank()).all(fits) {
            self.fail(format!("{} from {starts:?} to {ends:?} by {steps:?}", self.ty));
            return self.clone();
        }
        let dims: Vec<usize> = (0..self.rank()).map(|i| (ends[i] - starts[i]).div_ceil(steps[i])).collect();
        if dims == self.dims() && steps.iter().all(|step| *step == 1) {
            return self.clone();
        }
        let ranges = (0..self.rank()).map(|i| match steps[i] {
            1 => format!("{}:{}", starts[i], ends[i]),
            step => format!("{}:{}:{step}", starts[i], ends[i]),
        });
        let (ranges, ty) = (list(ranges), self.in_dims(&dims));
        self.emit(ty.clone(), format_args!("stablehlo.slice {self} [{ranges}] : ({}) -> {ty}", self.ty))
    }

    /// The elements from `start` to before `end` along an axis.
    #[must_use]
    pub fn slice_axis(&self, axis: usize, start: usize, end: usize) -> Hlo {
        let (mut starts, mut ends) = (vec![0; self.rank()], self.dims().to_vec());
        if let (Some(first), Some(last)) = (starts.get_mut(axis), ends.get_mut(axis)) {
            (*first, *last) = (start, end);
        }
        self.slice(&starts, &ends, &vec![1; self.rank()])
    }

    /// Padded with a scalar: `low` elements before, `high` behind, `interior` between neighbours, in each dimension.
    /// Negative numbers remove elements at the ends.
    #[must_use]
    pub fn pad(&self, value: &Hlo, low: &[i64], high: &[i64], interior: &[usize]) -> Hlo {
        if [low.len(), high.len(), interior.len()] != [self.rank(); 3] || value.rank() != 0 {
            self.fail(format!("{} padded by {low:?} and {high:?}", self.ty));
            return self.clone();
        }
        if low.iter().chain(high).all(|n| *n == 0) && interior.iter().all(|n| *n == 0) {
            return self.clone();
        }
        let dim = |i: usize| {
            let own = self.dims()[i] as i64;
            own + (own - 1).max(0) * interior[i] as i64 + low[i] + high[i]
        };
        let dims: Vec<usize> = (0..self.rank()).map(|i| dim(i).max(0) as usize).collect();
        let ty = self.in_dims(&dims);
        let text = format!(
            "stablehlo.pad {self}, {value}, low = {low:?}, high = {high:?}, interior = {interior:?} : ({}, {}) -> {ty}",
            self.ty, value.ty
        );
        self.emit(ty, text)
    }

    /// Zeros around the elements.
    #[must_use]
    pub fn pad_zeros(&self, low: &[i64], high: &[i64]) -> Hlo {
        self.pad(&self.scalar(0.0), low, high, &vec![0; self.rank()])
    }

    /// The values one after the other along an axis.
    #[must_use]
    pub fn concat(values: &[Hlo], axis: usize) -> Option<Hlo> {
        let [first, others @ ..] = values else { return None };
        if others.is_empty() {
            return Some(first.clone());
        }
        let mut ty = first.ty.clone();
        let of = |value: &Hlo| value.dims().get(axis).copied().unwrap_or(0);
        match ty.dims.get_mut(axis) {
            Some(dim) => *dim = values.iter().map(of).sum(),
            None => first.fail(format!("{} concatenated along axis {axis}", first.ty)),
        }
        let types = list(values.iter().map(|value| &value.ty));
        Some(first.emit(
            ty.clone(),
            format_args!("stablehlo.concatenate {}, dim = {axis} : ({types}) -> {ty}", list(values)),
        ))
    }

    /// The elements in reverse order along axes.
    #[must_use]
    pub fn reverse(&self, axes: &[usize]) -> Hlo {
        if axes.is_empty() {
            return self.clone();
        }
        self.emit(self.ty.clone(), format_args!("stablehlo.reverse {self}, dims = {axes:?} : {}", self.ty))
    }

    /// The part of these dimensions that begins at `starts`, scalars of an integer type, one for each dimension.
    #[must_use]
    pub fn dynamic_slice(&self, starts: &[Hlo], dims: &[usize]) -> Hlo {
        let ty = self.in_dims(dims);
        let (at, types) = (list(starts), list(starts.iter().map(|start| &start.ty)));
        let comma = if starts.is_empty() { "" } else { ", " };
        let text = format!(
            "stablehlo.dynamic_slice {self}{comma}{at}, sizes = {dims:?} : ({}{comma}{types}) -> {ty}",
            self.ty
        );
        self.emit(ty, text)
    }

    /// The value with `part` in place of the elements that begin at `starts`.
    #[must_use]
    pub fn dynamic_update(&self, part: &Hlo, starts: &[Hlo]) -> Hlo {
        let (at, types) = (list(starts), list(starts.iter().map(|start| &start.ty)));
        let comma = if starts.is_empty() { "" } else { ", " };
        let text = format!(
            "stablehlo.dynamic_update_slice {self}, {part}{comma}{at} : ({}, {}{comma}{types}) -> {}",
            self.ty, part.ty, self.ty
        );
        self.emit(self.ty.clone(), text)
    }

    /// Starts of a slice at a position of the first dimension.
    fn starts_at(&self, position: &Hlo) -> Vec<Hlo> {
        let zero = position.scalar(0.0);
        (0..self.rank()).map(|axis| if axis == 0 { position.clone() } else { zero.clone() }).collect()
    }

    /// The element of the first dimension at a position.
    #[must_use]
    pub fn at(&self, position: &Hlo) -> Hlo {
        let mut dims = self.dims().to_vec();
        if let Some(first) = dims.first_mut() {
            *first = 1;
        }
        self.dynamic_slice(&self.starts_at(position), &dims).reshape(&self.dims()[1..])
    }

    /// The value with another element of the first dimension at a position.
    #[must_use]
    pub fn set_at(&self, position: &Hlo, element: &Hlo) -> Hlo {
        let dims: Vec<usize> = std::iter::once(1).chain(element.dims().iter().copied()).collect();
        self.dynamic_update(&element.reshape(&dims), &self.starts_at(position))
    }

    /// 1 where the position along the axis equals the index, 0 elsewhere; `self` are indices, which `axes` places among
    /// `dims`.
    #[must_use]
    pub fn one_hot(&self, dims: &[usize], axis: usize, axes: &[usize]) -> Hlo {
        let positions = self.iota(self.dtype(), dims, axis);
        self.broadcast(dims, axes).equal(&positions)
    }
}
