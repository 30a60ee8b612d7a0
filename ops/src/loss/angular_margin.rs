//! Cross-entropy with margins between angles.

use autobwd::{
    Composed, Composition, DType, Dims, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
    tensor::Dim,
};

use crate::{
    Math,
    gather::are_numbers,
    math::{in_dtype, positions},
    scatter::TakeAlongAxis,
};

/// Cross-entropy of cosines with margins for the label (Deng et al., 2019): `loss = -ln(softmax(z)[label])`, with `z = scale * cos(t)` for
/// logits `cos(t)`, but `scale * (cos(margin1 * t + margin2) - margin3)` for the one of the label.
///
/// Classes are not divided among ranks.
#[register_op(grad = Composed, composed)]
pub struct MarginCrossEntropy<V = Var> {
    /// Cosines between −1 and 1, `[.., classes]`.
    #[input]
    pub logits: V,
    /// Classes, int64 or int32, `[..]` or `[.., 1]`.
    #[input]
    pub label: V,
    /// `softmax(z)`, same shape as `logits`.
    #[output(like = logits)]
    pub softmax: V,
    /// `[.., 1]`
    #[output]
    pub loss: V,
    /// Whether the reference keeps `softmax`, which is always there.
    #[attr(default = false)]
    pub return_softmax: bool,
    /// The group of ranks; there is one rank.
    #[attr(default = 0)]
    pub ring_id: i32,
    /// The number of this rank.
    #[attr(default = 0, min = 0, max = 0)]
    pub rank: i32,
    /// The number of ranks.
    #[attr(default = 1, min = 1, max = 1)]
    pub nranks: i32,
    /// The factor of the angle.
    #[attr(default = 1.0)]
    pub margin1: f32,
    /// What is added to the angle.
    #[attr(default = 0.5)]
    pub margin2: f32,
    /// What is subtracted from the cosine.
    #[attr(default = 0.0)]
    pub margin3: f32,
    /// The factor of cosines.
    #[attr(default = 64.0)]
    pub scale: f32,
}
impl Infer for MarginCrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.logits.float()?;
        are_numbers(&self.label)?;
        let Some((_, of_rows)) = self.logits.dims.split_last() else {
            return Err(self.logits.wrong("at least one dimension is needed"));
        };
        let rows = of_rows.iter().copied().collect::<Dims>();
        let column = of_rows.iter().copied().chain([Dim::from(1)]).collect::<Dims>();
        let fits = self.label.dims.agrees(&rows) || self.label.dims.agrees(&column);
        self.label.require(fits, || format!("dimensions {rows} or {column} are needed"))?;
        self.loss.set(self.logits.dtype, column);
        Ok(())
    }
}
impl Composition for MarginCrossEntropy<Expr> {
    fn compose(&mut self) {
        let (x, rank) = (&self.logits, self.logits.dims().len());
        let label = in_dtype(&self.label, DType::I64);
        // A column whose last dimension is known to be 1.
        let label = match label.dims().len() {
            own if own < rank => label.unsqueeze(&[-1]),
            1 => label.reshape(&[1]),
            _ => label.flatten(-2, -1).unsqueeze(&[-1]),
        };
        let at_label = |x: &Expr| {
            emit(TakeAlongAxis { input: x.into(), index: (&label).into(), result: New, axis: -1 }).result
        };
        let number = f64::from;
        let angle = at_label(x).acos() * number(self.margin1) + number(self.margin2);
        let own = angle.cos() - number(self.margin3);
        let is_own = positions(x.builder(), &x.dim(-1)).equal(&label);
        let z = is_own.where_cond(&own, x) * number(self.scale);
        let logarithms = z.log_softmax(-1);
        self.softmax = logarithms.exp();
        self.loss = at_label(&logarithms) * -1.0;
    }
}
autobwd::samples!(
    MarginCrossEntropy,
    [
        margins(between(-0.8, 0.8, [3, 4]), integers_below(4, [3, 1]), [1.0, 0.5, 0.0], 8.0),
        margins(between(-0.8, 0.8, [2, 3, 5]), integers_below(5, [2, 3]), [1.25, 0.25, 0.125], 4.0),
        margins(between(-0.8, 0.8, [4]), given([], [2.0]).of(DType::I64), [1.0, 0.0, 0.25], 2.0),
        MarginCrossEntropy {
            return_softmax: true,
            ring_id: 1,
            ..margins(between(-0.8, 0.8, [2, 3]), integers_below(3, [2]).of(DType::I32), [1.5, 0.0, 0.0], 1.0)
        },
        margins(uniform([0, 4]), integers_below(4, [0]), [1.0, 0.5, 0.0], 8.0),
        margins(uniform([2, 3]), given([2], [1.0, 3.0]).of(DType::I64), [1.0, 0.5, 0.0], 8.0)
            .fails("`Index`: 3 is not within 0..3"),
        margins(uniform([2, 3]), integers_below(3, [3]), [1.0, 0.5, 0.0], 8.0)
            .fails("`Label`: dimensions [2] or [2, 1] are needed"),
        margins(uniform([2, 3]), uniform([2]), [1.0, 0.5, 0.0], 8.0)
            .fails("`Label`: int64 or int32 is needed"),
        margins(uniform([]), integers_below(3, []), [1.0, 0.5, 0.0], 8.0)
            .fails("`Logits`: at least one dimension is needed"),
        margins(integers_below(2, [2, 3]), integers_below(3, [2]), [1.0, 0.5, 0.0], 8.0)
            .fails("`Logits`: floating point numbers are needed"),
        MarginCrossEntropy {
            nranks: 2,
            ..margins(uniform([2, 3]), integers_below(3, [2]), [1.0, 0.5, 0.0], 8.0)
        }
        .fails("attribute `nranks`"),
        MarginCrossEntropy {
            rank: 1,
            ..margins(uniform([2, 3]), integers_below(3, [2]), [1.0, 0.5, 0.0], 8.0)
        }
        .fails("attribute `rank`"),
    ]
);

fn margins(logits: Draw, label: Draw, margins: [f32; 3], scale: f32) -> MarginCrossEntropy<Draw> {
    let [margin1, margin2, margin3] = margins;
    MarginCrossEntropy {
        logits,
        label,
        softmax: out(),
        loss: out(),
        return_softmax: false,
        ring_id: 0,
        rank: 0,
        nranks: 1,
        margin1,
        margin2,
        margin3,
        scale,
    }
}
