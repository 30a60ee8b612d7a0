//! Sums, means and other reductions.

use autobwd_ops::reduce::{
    FrobeniusNormGrad, Mean, MeanGrad, ReduceAll, ReduceAmax, ReduceAmaxGrad, ReduceAmin, ReduceAminGrad,
    ReduceAny, ReduceAttrs, ReduceMax, ReduceMaxGrad, ReduceMean, ReduceMeanGrad, ReduceMin, ReduceMinGrad,
    ReduceSum, ReduceSumGrad,
};

use super::prelude::*;

rules!(
    FrobeniusNormGrad,
    Mean,
    MeanGrad,
    ReduceAll,
    ReduceAmax,
    ReduceAmaxGrad,
    ReduceAmin,
    ReduceAminGrad,
    ReduceAny,
    ReduceMax,
    ReduceMaxGrad,
    ReduceMean,
    ReduceMeanGrad,
    ReduceMin,
    ReduceMinGrad,
    ReduceSum,
    ReduceSumGrad,
);

/// The reduced axes of a tensor.
fn axes<I: Into<i64> + Copy>(x: &Hlo, dim: &[I], all: bool) -> Vec<usize> {
    if all || dim.is_empty() || x.rank() == 0 {
        return (0..x.rank()).collect();
    }
    let mut axes: Vec<usize> = dim.iter().map(|axis| x.axis(*axis)).collect();
    axes.sort_unstable();
    axes.dedup();
    axes
}

fn axes_of(x: &Hlo, reduce: &ReduceAttrs) -> Vec<usize> {
    axes(x, &reduce.dim, reduce.reduce_all)
}

/// The number of elements along axes.
fn count(x: &Hlo, axes: &[usize]) -> f64 {
    axes.iter().map(|axis| x.dims()[*axis] as f64).product()
}

fn all(x: &Hlo) -> Vec<usize> {
    (0..x.rank()).collect()
}

impl Rule<Hlo> for ReduceSum<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.convert(self.out.dtype()).sum(&axes_of(&self.x, &self.reduce));
    }
}
impl Rule<Hlo> for ReduceSumGrad<Hlo> {
    fn apply(&mut self) {
        let axes = axes_of(&self.dx, &self.reduce);
        self.dx = self.dout.convert(self.dx.dtype()).spread(self.dx.dims(), &axes);
    }
}
impl Rule<Hlo> for ReduceMean<Hlo> {
    fn apply(&mut self) {
        let axes = axes_of(&self.x, &self.reduce);
        self.out = self.x.convert(self.out.dtype()).sum(&axes) / count(&self.x, &axes);
    }
}
impl Rule<Hlo> for ReduceMeanGrad<Hlo> {
    fn apply(&mut self) {
        let axes = axes_of(&self.dx, &self.reduce);
        let each = self.dout.convert(self.dx.dtype()) / count(&self.dx, &axes);
        self.dx = each.spread(self.dx.dims(), &axes);
    }
}
impl Rule<Hlo> for Mean<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.sum_all() / self.x.numel() as f64;
    }
}
impl Rule<Hlo> for MeanGrad<Hlo> {
    fn apply(&mut self) {
        let each = &self.dout / self.dx.numel() as f64;
        self.dx = each.spread(self.dx.dims(), &all(&self.dx));
    }
}

/// `dout` in the positions of the extreme elements, which share it evenly or get it whole.
fn extreme_gradient([x, out, dout, dx]: [&Hlo; 4], reduce: &ReduceAttrs, shared: bool) -> Hlo {
    let axes = axes_of(x, reduce);
    let x = x.convert(out.dtype());
    let is_extreme = x.equal(&out.spread(x.dims(), &axes));
    let count = shared.then(|| is_extreme.convert(dx.dtype()).sum(&axes));
    let each = dout.convert(dx.dtype());
    let each = count.map_or(each.clone(), |count| each.reshape(count.dims()) / count);
    let gradient = each.spread(x.dims(), &axes);
    is_extreme.select(&gradient, &gradient.full_like(0.0))
}

impl Rule<Hlo> for ReduceMax<Hlo> {
    fn apply(&mut self) {
        let x = self.x.convert(self.out.dtype());
        self.out = x.reduce(Reduction::Max, &axes_of(&self.x, &self.reduce));
    }
}
impl Rule<Hlo> for ReduceMaxGrad<Hlo> {
    fn apply(&mut self) {
        self.dx = extreme_gradient([&self.x, &self.out, &self.dout, &self.dx], &self.reduce, false);
    }
}
impl Rule<Hlo> for ReduceMin<Hlo> {
    fn apply(&mut self) {
        let x = self.x.convert(self.out.dtype());
        self.out = x.reduce(Reduction::Min, &axes_of(&self.x, &self.reduce));
    }
}
impl Rule<Hlo> for ReduceMinGrad<Hlo> {
    fn apply(&mut self) {
        self.dx = extreme_gradient([&self.x, &self.out, &self.dout, &self.dx], &self.reduce, false);
    }
}

impl Rule<Hlo> for ReduceAmax<Hlo> {
    fn apply(&mut self) {
        let x = self.x.convert(self.out.dtype());
        self.out = x.reduce(Reduction::Max, &axes_of(&self.x, &self.reduce));
    }
}
impl Rule<Hlo> for ReduceAmaxGrad<Hlo> {
    fn apply(&mut self) {
        self.dx = extreme_gradient([&self.x, &self.out, &self.dout, &self.dx], &self.reduce, true);
    }
}
impl Rule<Hlo> for ReduceAmin<Hlo> {
    fn apply(&mut self) {
        let x = self.x.convert(self.out.dtype());
        self.out = x.reduce(Reduction::Min, &axes_of(&self.x, &self.reduce));
    }
}
impl Rule<Hlo> for ReduceAminGrad<Hlo> {
    fn apply(&mut self) {
        self.dx = extreme_gradient([&self.x, &self.out, &self.dout, &self.dx], &self.reduce, true);
    }
}

impl Rule<Hlo> for ReduceAll<Hlo> {
    fn apply(&mut self) {
        let axes = axes(&self.x, &self.reduce.dim, self.reduce.reduce_all);
        self.out = self.x.convert(HloDType::Bool).reduce(Reduction::All, &axes).convert(self.out.dtype());
    }
}
impl Rule<Hlo> for ReduceAny<Hlo> {
    fn apply(&mut self) {
        let axes = axes(&self.x, &self.reduce.dim, self.reduce.reduce_all);
        self.out = self.x.convert(HloDType::Bool).reduce(Reduction::Any, &axes).convert(self.out.dtype());
    }
}
impl Rule<Hlo> for FrobeniusNormGrad<Hlo> {
    fn apply(&mut self) {
        let axes = axes_of(&self.x, &self.reduce);
        let spread = |value: &Hlo| value.convert(self.dx.dtype()).spread(self.x.dims(), &axes);
        let (norm, dout) = (spread(&self.out), spread(&self.dout));
        // Zeros have the gradient 0.
        let is_zero = norm.equal(&norm.full_like(0.0));
        let ratio = self.x.convert(self.dx.dtype()) / is_zero.select(&norm.full_like(1.0), &norm);
        self.dx = dout * ratio;
    }
}
