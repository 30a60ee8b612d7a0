//! Resizing of images.

use autobwd_ops::interpolate::{
    BilinearInterpV2, BilinearInterpV2Grad, InterpAttrs, InterpMethod, NearestInterpV2, NearestInterpV2Grad,
};

use super::prelude::*;

family!(BilinearInterpV2, BilinearInterpV2Grad, NearestInterpV2, NearestInterpV2Grad);

/// The sources of the elements of a result along an axis: each is a sum of two elements, with these weights.
struct AxisSources {
    axis: usize,
    first: Vec<f64>,
    behind: Vec<f64>,
    /// Of the element behind; none for the nearest element.
    weights: Option<Vec<f64>>,
}

impl AxisSources {
    fn of(interp: &InterpAttrs, factor: Option<f32>, axis: usize, n: usize, out: usize) -> AxisSources {
        let ratio = match (out, interp.align_corners, factor) {
            (0 | 1, ..) => 0.0,
            (_, true, _) => n.saturating_sub(1) as f32 / (out - 1) as f32,
            (.., Some(factor)) => (1.0 / f64::from(factor)) as f32,
            _ => n as f32 / out as f32,
        };
        let (mut first, mut behind, mut weights) = (vec![], vec![], vec![]);
        let last = n.saturating_sub(1);
        for i in 0..out {
            let at = ratio * i as f32;
            if interp.interp_method == InterpMethod::Nearest {
                let at = if interp.align_corners { (f64::from(at) + 0.5) as usize } else { at as usize };
                first.push(at.min(last) as f64);
                continue;
            }
            let is_centred = interp.align_mode == 0 && !interp.align_corners;
            let at = if is_centred { (ratio * (i as f32 + 0.5) - 0.5).max(0.0) } else { at };
            let from = (at as usize).min(last);
            first.push(from as f64);
            behind.push((from + 1).min(last) as f64);
            weights.push(f64::from(at - from as f32));
        }
        let is_nearest = interp.interp_method == InterpMethod::Nearest;
        AxisSources { axis, first, behind, weights: (!is_nearest).then_some(weights) }
    }

    fn indices(of: &Hlo, list: &[f64]) -> Hlo {
        of.vector(HloDType::I64, list)
    }

    /// Weights of the elements before and behind, in the dimensions of a result.
    fn weights(&self, of: &Hlo, dims: &[usize], weights: &[f64]) -> [Hlo; 2] {
        let before: Vec<f64> = weights.iter().map(|w| f64::from(1.0 - *w as f32)).collect();
        [&before, weights].map(|list| of.vector(of.dtype(), list).broadcast(dims, &[self.axis]))
    }

    fn resize(&self, x: &Hlo) -> Hlo {
        let first = x.rows(self.axis, &Self::indices(x, &self.first));
        let Some(weights) = &self.weights else { return first };
        let behind = x.rows(self.axis, &Self::indices(x, &self.behind));
        let [of_first, of_behind] = self.weights(x, first.dims(), weights);
        first * of_first + behind * of_behind
    }

    fn gradient(&self, dout: &Hlo, n: usize) -> Hlo {
        let mut dims = dout.dims().to_vec();
        dims[self.axis] = n;
        let zeros = dout.full(dout.dtype(), &dims, 0.0);
        let first = Self::indices(dout, &self.first);
        let Some(weights) = &self.weights else { return zeros.add_rows(self.axis, &first, dout) };
        let [of_first, of_behind] = self.weights(dout, dout.dims(), weights);
        let sum = zeros.add_rows(self.axis, &first, &(dout * of_first));
        sum.add_rows(self.axis, &Self::indices(dout, &self.behind), &(dout * of_behind))
    }
}

/// Resizing of images `x` to `out`, in the dimensions of both.
fn sources(
    interp: &InterpAttrs,
    (scale, has_size): (&Option<Hlo>, bool),
    x: &[usize],
    out: &[usize],
) -> Vec<AxisSources> {
    if x[2..] == out[2..] {
        return vec![];
    }
    let attribute: Vec<f32> = interp.scale.clone();
    let factors = match scale.as_ref().and_then(Hlo::known) {
        _ if has_size => vec![],
        Some(known) => known.iter().map(|x| *x as f32).collect(),
        None => attribute,
    };
    let factor = |i: usize| factors.get(i).or(factors.first()).copied();
    [0, 1].map(|i| AxisSources::of(interp, factor(i), i + 2, x[i + 2], out[i + 2])).into()
}

macro_rules! resizing {
    ($($op:ident $gradient:ident),*) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                let has_size = self.out_size.is_some() || !self.size_tensor.is_empty();
                let axes = sources(&self.interp, (&self.scale, has_size), self.x.dims(), self.out.dims());
                self.out = axes.iter().fold(self.x.clone(), |x, axis| axis.resize(&x));
            }
        }
        impl Lower for $gradient<Hlo> {
            fn lower(&mut self) {
                let has_size = self.out_size.is_some() || !self.size_tensor.is_empty();
                let axes = sources(&self.interp, (&self.scale, has_size), self.dx.dims(), self.dout.dims());
                let dims = self.dx.dims().to_vec();
                let back = axes.iter().rev();
                self.dx = back.fold(self.dout.clone(), |dout, axis| axis.gradient(&dout, dims[axis.axis]));
            }
        }
    )*};
}
resizing!(BilinearInterpV2 BilinearInterpV2Grad, NearestInterpV2 NearestInterpV2Grad);
