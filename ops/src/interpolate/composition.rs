//! Resizing as a composition: along each axis, elements at computed positions, or weighted sums of two.

use autobwd::{DType, Expr};

use super::{InterpAttrs, InterpMethod, SizeTensors};
use crate::{
    Math,
    math::{DimExpr, all_sizes, filled, positions},
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
    /// The resized images, signals or volumes.
    pub(super) fn compose(&self, given: &SizeTensors<'_, Expr>, x: &Expr) -> Expr {
        let dims = all_sizes(x).split_off(2);
        let count = dims.len();
        let along = |(i, n): (usize, DimExpr)| self.along(given, x, (i, count), n);
        let mut axes: Vec<AxisPositions> = dims.into_iter().enumerate().map(along).collect();
        let pairs = || axes.iter().map(|axis| (axis.x.known(), axis.out.known()));
        if pairs().all(|(x, out)| x.is_some() && x == out) {
            return x.clone();
        }
        if pairs().any(|(x, out)| x.is_none() || out.is_none()) {
            let number = |n: &DimExpr| n.number(x.builder());
            let equal = axes.iter().map(|axis| number(&axis.x).equal(&number(&axis.out)));
            let is_copy = equal.reduce(|all, axis| all.logical_and(&axis));
            axes.iter_mut().for_each(|axis| axis.is_copy.clone_from(&is_copy));
        }
        axes.iter().zip(2..).fold(x.clone(), |x, (axis, at)| axis.resize(self, &x, at))
    }

    fn along(
        &self,
        given: &SizeTensors<'_, Expr>,
        images: &Expr,
        (i, count): (usize, usize),
        x: DimExpr,
    ) -> AxisPositions {
        let builder = images.builder();
        let (out, factor) = match (given.size_tensor.get(i), given.out_size, given.scale, &self.scale[..]) {
            (Some(size), ..) => (DimExpr::only_element(size), None),
            (_, Some(size), ..) => (DimExpr::element(size, i as i32), None),
            (.., Some(scale), _) => {
                // A factor decides about positions only.
                let factors = scale.detach().cast(DType::F32).expand_to(&[(count as i64).into()]);
                let factor = factors.slice(0, i as i32, i as i32 + 1);
                (DimExpr::rounded_down(&(x.number(builder).cast(DType::F32) * &factor)), Some(factor))
            }
            (.., []) => (i64::from(self.sizes(count)[i]).into(), None),
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
        let centred = |i: Expr| (i + 0.5) * &ratio - 0.5;
        let at = match interp.interp_method {
            _ if interp.align_corners => i * &ratio,
            InterpMethod::Bicubic => centred(i),
            InterpMethod::Nearest => i * &ratio,
            _ if interp.align_mode == 0 => centred(i).clip(0.0, f64::INFINITY),
            _ => i * &ratio,
        };
        let last = (&self.x - 1).number(builder);
        if interp.interp_method == InterpMethod::Nearest {
            let at = if interp.align_corners { at.cast(DType::F64) + 0.5 } else { at };
            return x.gather(&at.cast(DType::I64).minimum(&last), axis);
        }
        let part = |index: &Expr, weight: Expr| {
            let rank = x.dims().len() as i32;
            let weight = weight.cast(x.dtype());
            x.gather(index, axis) * (1..rank - axis).fold(weight, |weight, at| weight.unsqueeze(&[at]))
        };
        if interp.interp_method == InterpMethod::Bicubic {
            let (first, zero) = (at.floor(), DimExpr::from(0).number(builder));
            let weights = cubic_weights(&(&at - &first));
            let parts = weights.into_iter().zip([-1.0, 0.0, 1.0, 2.0]).map(|(weight, distance)| {
                part(&(&first + distance).cast(DType::I64).maximum(&zero).minimum(&last), weight)
            });
            return parts.reduce(|sum, part| sum + part).unwrap_or_else(|| x.clone());
        }
        let first = at.cast(DType::I64).minimum(&last);
        let weight = at - first.cast(DType::F32);
        part(&first, 1.0 - &weight) + part(&(&first + 1.0).minimum(&last), weight)
    }
}

/// The weights of the four elements around positions, each between the second and the third element: cubic convolution
/// with `a = -0.75` (Keys 1981).
fn cubic_weights(after: &Expr) -> [Expr; 4] {
    let a = -0.75;
    let near = |x: &Expr| (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0;
    let far = |x: &Expr| ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    let before = 1.0 - after;
    [far(&(after + 1.0)), near(after), near(&before), far(&(before + 1.0))]
}
