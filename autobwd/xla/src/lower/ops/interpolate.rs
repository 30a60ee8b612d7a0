//! Resizing of images: rows and columns are gathered, and weighted for linear interpolation.

use autobwd_ops::interpolate::{
    BilinearInterpV2, BilinearInterpV2Grad, InterpAttrs, InterpMethod, NearestInterpV2, NearestInterpV2Grad,
};

use super::prelude::*;

family!(BilinearInterpV2, BilinearInterpV2Grad, NearestInterpV2, NearestInterpV2Grad);

/// Resizing along one axis: terms of the result, each with the elements that it takes and their weights.
struct ResizedAxis {
    axis: usize,
    terms: Vec<(Vec<f64>, Vec<f64>)>,
}

impl ResizedAxis {
    /// Positions are computed in single precision, as the kernel does.
    fn new(interp: &InterpAttrs, factor: Option<f32>, axis: usize, [x, out]: [usize; 2]) -> ResizedAxis {
        let ratio = match (out, interp.align_corners, factor) {
            (0 | 1, ..) => 0.0,
            (_, true, _) => x.saturating_sub(1) as f32 / (out - 1) as f32,
            (.., Some(factor)) => (1.0 / f64::from(factor)) as f32,
            _ => x as f32 / out as f32,
        };
        let last = x.saturating_sub(1);
        let nearest = |i: usize| {
            let at = ratio * i as f32;
            let at = if interp.align_corners { (f64::from(at) + 0.5) as usize } else { at as usize };
            at.min(last) as f64
        };
        let is_centred = interp.align_mode == 0 && !interp.align_corners;
        let between = |i: usize| {
            let at = if is_centred { (ratio * (i as f32 + 0.5) - 0.5).max(0.0) } else { ratio * i as f32 };
            let first = (at as usize).min(last);
            (first, at - first as f32)
        };
        let terms = match interp.interp_method {
            InterpMethod::Nearest => vec![((0..out).map(nearest).collect(), vec![])],
            InterpMethod::Bilinear => {
                let first =
                    (0..out).map(between).map(|(first, weight)| (first as f64, f64::from(1.0 - weight)));
                let behind =
                    |(first, weight): (usize, f32)| ((first + 1).min(last) as f64, f64::from(weight));
                vec![first.unzip(), (0..out).map(between).map(behind).unzip()]
            }
        };
        ResizedAxis { axis, terms }
    }

    fn weighted(&self, value: &Hlo, weights: &[f64]) -> Hlo {
        match weights {
            [] => value.clone(),
            weights => value * value.vector(value.dtype(), weights).broadcast(value.dims(), &[self.axis]),
        }
    }

    fn resize(&self, x: &Hlo) -> Hlo {
        let term = |(elements, weights): &(Vec<f64>, Vec<f64>)| {
            self.weighted(&x.rows(self.axis, &x.vector(HloDType::I32, elements)), weights)
        };
        self.terms.iter().map(term).reduce(|sum, term| sum + term).unwrap_or_else(|| x.clone())
    }

    /// The gradient along the axis, which has `count` elements.
    fn gradient(&self, dout: &Hlo, count: usize) -> Hlo {
        let mut dims = dout.dims().to_vec();
        dims[self.axis] = count;
        let zeros = dout.full(dout.dtype(), &dims, 0.0);
        self.terms.iter().fold(zeros, |dx, (elements, weights)| {
            let elements = dout.vector(HloDType::I32, elements);
            dx.add_rows(self.axis, &elements, &self.weighted(dout, weights))
        })
    }
}

/// The axes whose sizes change, or none if neither does: then the result is the image, whatever the factors are.
fn resized_axes(interp: &InterpAttrs, factors: Option<[f32; 2]>, [x, out]: [&Hlo; 2]) -> Vec<ResizedAxis> {
    let sizes = [2, 3].map(|axis| [x.dims()[axis], out.dims()[axis]]);
    if sizes.iter().all(|[x, out]| x == out) {
        return vec![];
    }
    let axis = |i: usize| ResizedAxis::new(interp, factors.map(|factors| factors[i]), 2 + i, sizes[i]);
    vec![axis(0), axis(1)]
}

/// The factors of height and width, unless sizes are given.
macro_rules! factors {
    ($op:expr) => {
        match (&$op.scale, &$op.out_size) {
            _ if !$op.size_tensor.is_empty() => None,
            (_, Some(_)) => None,
            (Some(scale), None) => match scale.known() {
                Some([factor]) => Some([*factor as f32; 2]),
                Some([down, across]) => Some([*down as f32, *across as f32]),
                _ => None,
            },
            (None, None) => <[f32; 2]>::try_from(&$op.interp.scale[..]).ok(),
        }
    };
}

macro_rules! resizing {
    ($($forward:ident $gradient:ident),*) => {$(
        impl Lower for $forward<Hlo> {
            fn lower(&mut self) {
                let axes = resized_axes(&self.interp, factors!(self), [&self.x, &self.out]);
                self.out = axes.iter().fold(self.x.clone(), |x, axis| axis.resize(&x));
            }
        }
        impl Lower for $gradient<Hlo> {
            fn lower(&mut self) {
                let axes = resized_axes(&self.interp, factors!(self), [&self.dx, &self.dout]);
                let dx = axes.iter().fold(self.dout.clone(), |dout, axis| {
                    axis.gradient(&dout, self.dx.dims()[axis.axis])
                });
                self.dx = dx;
            }
        }
    )*};
}
resizing!(BilinearInterpV2 BilinearInterpV2Grad, NearestInterpV2 NearestInterpV2Grad);
