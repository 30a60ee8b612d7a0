//! Operations in which all replicas take part. With one replica they append nothing.

use super::{
    Hlo, HloDType, HloType, Reduction,
    types::{list, results},
};

impl Hlo {
    /// The number of replicas.
    pub fn replicas(&self) -> usize {
        self.f.replicas()
    }

    /// Values of one dtype, each reduced over all replicas, elementwise.
    pub fn all_reduce(values: &[Hlo], by: Reduction) -> Vec<Hlo> {
        let Some(of) = values.first().filter(|of| of.replicas() > 1) else { return values.to_vec() };
        if values.iter().any(|value| value.dtype() != of.dtype()) {
            of.fail("values of several dtypes in one reduction over replicas");
        }
        let body = of.combiner(of.dtype(), |x, y| by.combine(x, y));
        let types: Vec<HloType> = values.iter().map(|value| value.ty.clone()).collect();
        let text = format!(
            "\"stablehlo.all_reduce\"({}) <{{{}}}> ({body}) : ({}) -> {}",
            list(values),
            of.all_replicas(),
            list(&types),
            results(&types)
        );
        of.emit_all(types, text)
    }

    /// The values of all replicas, joined along an axis.
    #[must_use]
    pub fn all_gather(&self, axis: usize) -> Hlo {
        if self.replicas() == 1 {
            return self.clone();
        }
        let mut dims = self.dims().to_vec();
        match dims.get_mut(axis) {
            Some(dim) => *dim *= self.replicas(),
            None => self.fail(format!("{} joined along the axis {axis}", self.ty)),
        }
        if self.numel() == 0 {
            return self.full(self.dtype(), &dims, 0.0);
        }
        let ty = self.in_dims(&dims);
        let text = format!(
            "\"stablehlo.all_gather\"({self}) <{{all_gather_dim = {axis} : i64, {}}}> : ({}) -> {ty}",
            self.all_replicas(),
            self.ty
        );
        self.emit(ty, text)
    }

    /// Reduces over all replicas; each gets the part along an axis that has its number.
    #[must_use]
    pub fn reduce_scatter(&self, by: Reduction, axis: usize) -> Hlo {
        if self.replicas() == 1 {
            return self.clone();
        }
        let mut dims = self.dims().to_vec();
        match dims.get_mut(axis) {
            Some(dim) if dim.is_multiple_of(self.replicas()) => *dim /= self.replicas(),
            _ => self.fail(format!("{} divided along the axis {axis}", self.ty)),
        }
        if self.numel() == 0 {
            return self.full(self.dtype(), &dims, 0.0);
        }
        let (ty, body) = (self.in_dims(&dims), self.combiner(self.dtype(), |x, y| by.combine(x, y)));
        let text = format!(
            "\"stablehlo.reduce_scatter\"({self}) <{{scatter_dimension = {axis} : i64, {}}}> ({body}) : ({}) -> {ty}",
            self.all_replicas(),
            self.ty
        );
        self.emit(ty, text)
    }

    /// The value on one replica, another number in all elements on the others.
    #[must_use]
    pub fn on_replica(&self, replica: usize, otherwise: f64) -> Hlo {
        if self.replicas() == 1 {
            return self.clone();
        }
        let id = self.emit(HloType::scalar(HloDType::U32), "stablehlo.replica_id : tensor<ui32>");
        id.equal(&id.full_like(replica as f64)).select(self, &self.full_like(otherwise))
    }

    /// The value of one replica, for all.
    #[must_use]
    pub fn of_replica(&self, replica: usize) -> Hlo {
        // The sum of the bits with zeros: that of the numbers would lose the sign of −0.
        let bits = match self.dtype() {
            // 16 bits fit into single precision, and come back.
            HloDType::F16 | HloDType::BF16 => {
                return self.convert(HloDType::F32).of_replica(replica).convert(self.dtype());
            }
            HloDType::F32 => self.bitcast(HloDType::U32),
            HloDType::F64 => self.bitcast(HloDType::U64),
            _ => self.clone(),
        };
        let by = if self.dtype() == HloDType::Bool { Reduction::Any } else { Reduction::Sum };
        Hlo::all_reduce(&[bits.on_replica(replica, 0.0)], by).remove(0).bitcast(self.dtype())
    }

    /// The attribute for one group of all replicas.
    fn all_replicas(&self) -> String {
        let n = self.replicas();
        format!("replica_groups = dense<[[{}]]> : tensor<1x{n}xi64>", list(0..n))
    }
}
