//! The gradient of the gradient of attention, of operators for which all scores exist.

use autobwd::{GradCx, GradRule, OpDesc, Var};

use super::ScaledDotProductAttentionGrad;
use crate::{
    activation::{Exp, Scale},
    elementwise::{ElementwiseAdd, ElementwiseMul, ElementwiseSub, grad_if_any},
    fill::FillAnyLike,
    matmul::MatmulV2,
    reduce::{ReduceAttrs, ReduceSum},
    shape::{Transpose2, TrilTriu},
    special::Rsqrt,
};

/// Of `dq = e · k / √d`, `dk = eᵀ · q / √d` and `dv = pᵀ · dout`, where `e = p * a` and `a = dout · vᵀ - Σ dout * out +
/// dlog_sum`. With `ge = (ddq · kᵀ + q · ddkᵀ) / √d`, `ga = ge * p`, `gp = ge * a + dout · ddvᵀ` and `gs = gp * p`: for `q`
/// `(e · ddk + gs · k) / √d`, for `k` `(eᵀ · ddq + gsᵀ · q) / √d`, for `v` `gaᵀ · dout`, for `out` `-dout * Σ ga`, for
/// `log_sum` `-Σ gs`, and `ddout = p · ddv + ga · v - out * Σ ga`, `ddlog_sum = Σ ga`.
pub struct ScaledDotProductAttentionGradGrad;
impl GradRule<ScaledDotProductAttentionGrad> for ScaledDotProductAttentionGradGrad {
    fn emit(fwd: &ScaledDotProductAttentionGrad, g: &mut GradCx<'_>) {
        let ScaledDotProductAttentionGrad { q, k, v, out, log_sum, dout, dlog_sum, causal, .. } = *fwd;
        let [ddq, ddk, ddv] = [fwd.dq, fwd.dk, fwd.dv].map(|grad| grad_if_any(g, grad));
        let mut ops = Ops(g);
        let factor = ops.factor(q);
        let (q_scaled, ddq) = (ops.scaled_heads(q, factor), ddq.map(|ddq| ops.scaled_heads(ddq, factor)));
        let [k_heads, v_heads, dout_heads] = [k, v, dout].map(|x| ops.heads(x));
        let [ddk, ddv] = [ddk, ddv].map(|x| x.map(|x| ops.heads(x)));
        let factor = ops.rows(factor);
        let p = {
            let (scores, log_sum) = (ops.product(q_scaled, k_heads), ops.rows(log_sum));
            let x = ops.sub(scores, log_sum);
            // What is not seen may be too large for an exponential.
            let x = if causal { ops.seen(x) } else { x };
            let p = ops.push("shares", |out| Exp { x, out });
            if causal { ops.seen(p) } else { p }
        };
        let ge = [ddq.map(|ddq| ops.product(ddq, k_heads)), ddk.map(|ddk| ops.product(q_scaled, ddk))];
        let mut gp = [ddv.map(|ddv| ops.product(dout_heads, ddv)), None];
        if let Some(ddv) = ddv {
            ops.contribute(dout, [p, ddv], false);
        }
        if let Some(ge) = ops.total(ge) {
            let of_out = ops.mul(dout, out);
            let (slopes, of_out) = (ops.product(dout_heads, v_heads), ops.sum(of_out));
            let shift = dlog_sum.map_or(of_out, |dlog_sum| ops.sub(of_out, dlog_sum));
            let shift = ops.rows(shift);
            let a = ops.sub(slopes, shift);
            let (e, ga) = (ops.mul(p, a), ops.mul(ge, p));
            gp[1] = Some(ops.mul(ge, a));
            if let Some(ddk) = ddk {
                let e = ops.mul(e, factor);
                ops.contribute(q, [e, ddk], false);
            }
            if let Some(ddq) = ddq {
                ops.contribute(k, [e, ddq], true);
            }
            ops.contribute(v, [ga, dout_heads], true);
            ops.contribute(dout, [ga, v_heads], false);
            let total = ops.sum(ga);
            let minus = ops.negated(total);
            let minus = ops.rows(minus);
            for (to, x) in [(dout, out), (out, dout)] {
                if let Some(out) = ops.0.wanted(to) {
                    ops.0.push(ElementwiseMul { x, y: minus, out, axis: 0 });
                }
            }
            if let Some(grad) = dlog_sum.and_then(|dlog_sum| ops.0.wanted(dlog_sum)) {
                ops.transpose(total, grad, &ROWS);
            }
        }
        let Some(gp) = ops.total(gp) else { return };
        let gs = ops.mul(gp, p);
        let scaled = ops.mul(gs, factor);
        ops.contribute(q, [scaled, k_heads], false);
        ops.contribute(k, [gs, q_scaled], true);
        if let Some(grad) = ops.0.wanted(log_sum) {
            let total = ops.sum(gs);
            let minus = ops.negated(total);
            ops.transpose(minus, grad, &ROWS);
        }
    }
}

/// From `[batch, rows, heads, d]` to `[batch, heads, rows, d]`, and back.
const HEADS: [i32; 4] = [0, 2, 1, 3];
/// From `[batch, rows, heads]` to `[batch, heads, rows]`, and back.
const ROWS: [i32; 3] = [0, 2, 1];

/// Appends operators.
struct Ops<'a, 'g>(&'a mut GradCx<'g>);

impl Ops<'_, '_> {
    fn push<O: Into<OpDesc>>(&mut self, what: &str, op: impl FnOnce(Var) -> O) -> Var {
        let out = self.0.fresh(what);
        self.0.push(op(out));
        out
    }

    fn transpose(&mut self, x: Var, out: Var, axis: &[i32]) {
        let x_shape = self.0.fresh("x_shape");
        self.0.push(Transpose2 { x, out, x_shape, axis: axis.into() });
    }

    /// As matrices, one a head.
    fn heads(&mut self, x: Var) -> Var {
        let out = self.0.fresh("heads");
        self.transpose(x, out, &HEADS);
        out
    }

    /// As matrices whose rows are multiplied by numbers.
    fn scaled_heads(&mut self, x: Var, by: Var) -> Var {
        let scaled = self.mul(x, by);
        self.heads(scaled)
    }

    /// Numbers of rows, in the order of matrices.
    fn rows(&mut self, x: Var) -> Var {
        let out = self.0.fresh("rows");
        self.transpose(x, out, &ROWS);
        out
    }

    /// `1 / √d` for every row.
    fn factor(&mut self, x: Var) -> Var {
        let ones = self.push("ones", |out| FillAnyLike { x, out, value: 1.0, dtype: None });
        let depth = self.sum(ones);
        self.push("factor", |out| Rsqrt { x: depth, out })
    }

    /// `x · yᵀ`
    fn product(&mut self, x: Var, y: Var) -> Var {
        self.push("product", |out| MatmulV2 { x, y, out, trans_x: false, trans_y: true })
    }

    /// `x · y` or `xᵀ · y`, back in order, as part of the gradient of a variable.
    fn contribute(&mut self, to: Var, [x, y]: [Var; 2], trans_x: bool) {
        if let Some(grad) = self.0.wanted(to) {
            let product = self.push("product", |out| MatmulV2 { x, y, out, trans_x, trans_y: false });
            self.transpose(product, grad, &HEADS);
        }
    }

    fn total(&mut self, terms: [Option<Var>; 2]) -> Option<Var> {
        match terms {
            [Some(x), Some(y)] => Some(self.push("sum", |out| ElementwiseAdd { x, y, out, axis: -1 })),
            [x, y] => x.or(y),
        }
    }

    fn sub(&mut self, x: Var, y: Var) -> Var {
        self.push("difference", |out| ElementwiseSub { x, y, out, axis: 0 })
    }

    fn mul(&mut self, x: Var, y: Var) -> Var {
        self.push("product", |out| ElementwiseMul { x, y, out, axis: 0 })
    }

    fn negated(&mut self, x: Var) -> Var {
        self.push("negated", |out| Scale { x, out, scale: -1.0, bias: 0.0, bias_after_scale: true })
    }

    /// Over the last dimension.
    fn sum(&mut self, x: Var) -> Var {
        self.push("sum", |out| ReduceSum { x, out, reduce: ReduceAttrs::over([-1]) })
    }

    /// Scores of keys that come no later than the query.
    fn seen(&mut self, x: Var) -> Var {
        self.push("seen", |out| TrilTriu { x, out, diagonal: 0, lower: true })
    }
}
