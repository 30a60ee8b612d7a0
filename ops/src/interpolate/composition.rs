//! Resizing as a composition: along each axis, elements at computed positions, or weighted sums of two.

use std::array;

use autobwd::{DType, Expr};

use super::{InterpAttrs, InterpMethod, SizeTensors};
use crate::{
    Math,
    math::{DimExpr, filled, positions, sizes},
};

/// Source positions along one axis, as in the kernels.
struct AxisPositions {
    /// Elements of the image and of the result.
    x: DimExpr,
    out: DimExpr,
    /// The factor, float32 of one element, if it decides about the size.
    factor: Option<Expr>,
    /// Whether the result is the image, whatever the factor is; `None` if it is not.
    is_copy: Option<Expr>,
}

impl InterpAttrs {
    /// The resized images.
    pub(super) fn compose(&self, given: &SizeTensors<'_, Expr>, x: &Expr) -> Expr {
        let [_, _, dims @ ..] = sizes::<4>(x);
        let mut axes: [AxisPositions; 2] = array::from_fn(|i| self.along(given, x, i, dims[i].clone()));
        let pairs = axes.each_ref().map(|axis| (axis.x.known(), axis.out.known()));
        if pairs.iter().all(|(x, out)| x.is_some() && x == out) {
            return x.clone();
        }
        if pairs.iter().any(|(x, out)| x.is_none() || out.is_none()) {
            let [down, across] =
                axes.each_ref().map(|axis| axis.x.number(x.builder()).equal(&axis.out.number(x.builder())));
            let is_copy = down.logical_and(&across);
            axes.iter_mut().for_each(|axis| axis.is_copy = Some(is_copy.clone()));
        }
        let [down, across] = axes;
        across.resize(self, &down.resize(self, x, 2), 3)
    }

    fn along(&self, given: &SizeTensors<'_, Expr>, images: &Expr, i: usize, x: DimExpr) -> AxisPositions {
        let builder = images.builder();
        let (out, factor) = match (given.size_tensor.get(i), given.out_size, given.scale, &self.scale[..]) {
            (Some(size), ..) => (DimExpr::only_element(size), None),
            (_, Some(size), ..) => (DimExpr::element(size, i as i32), None),
            (.., Some(scale), _) => {
                // A factor decides about positions only.
                let factors = scale.detach().cast(DType::F32).expand_to(&[2.into()]);
                let factor = factors.slice(0, i as i32, i as i32 + 1);
                (DimExpr::rounded_down(&(x.number(builder).cast(DType::F32) * &factor)), Some(factor))
            }
            (.., []) => (i64::from([self.out_h, self.out_w][i]).into(), None),
            (.., factors) => {
                let factor = factors[i];
                (x.scaled(factor), Some(filled(builder, DType::F32, &factor.to_string(), &[1.into()])))
            }
        };
        AxisPositions { x, out, factor, is_copy: None }
    }
}

impl AxisPositions {
    /// The distance of source positions, float32 of one element.
    fn ratio(&self, align_corners: bool, images: &Expr) -> Expr {
        let number = |n: &DimExpr| n.number(images.builder()).cast(DType::F32);
        let last = &self.out - 1;
        let ratio = match &self.factor {
            _ if align_corners => number(&(&self.x - 1)) / number(&last.max(1)),
            None => number(&self.x) / number(&self.out.max(1)),
            Some(factor) => {
                let ratio = factor.cast(DType::F64).reciprocal().cast(DType::F32);
                match &self.is_copy {
                    None => ratio,
                    Some(is_copy) => is_copy.where_cond(&number(&1.into()), &ratio),
                }
            }
        };
        // The only element of an axis is the first one.
        ratio * number(&last.min(1))
    }

    /// The images, resized along an axis.
    fn resize(&self, interp: &InterpAttrs, x: &Expr, axis: i32) -> Expr {
        let (builder, ratio) = (x.builder(), self.ratio(interp.align_corners, x));
        let i = positions(builder, &self.out).cast(DType::F32);
        let at = match interp.interp_method {
            InterpMethod::Bilinear if interp.align_mode == 0 && !interp.align_corners => {
                ((i + 0.5) * ratio - 0.5).clip(0.0, f64::INFINITY)
            }
            _ => i * ratio,
        };
        let last = (&self.x - 1).number(builder);
        if interp.interp_method == InterpMethod::Nearest {
            let at = if interp.align_corners { at.cast(DType::F64) + 0.5 } else { at };
            return x.gather(&at.cast(DType::I64).minimum(&last), axis);
        }
        let first = at.cast(DType::I64).minimum(&last);
        let weight = at - first.cast(DType::F32);
        let part = |index: &Expr, weight: Expr| {
            let weight = weight.cast(x.dtype());
            x.gather(index, axis) * if axis == 2 { weight.unsqueeze(&[1]) } else { weight }
        };
        part(&first, 1.0 - &weight) + part(&(&first + 1.0).minimum(&last), weight)
    }
}
