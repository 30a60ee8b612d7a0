use autobwd::{Error, Expr, New, emit};

use crate::{Math, fill::FillAnyLike, math::failed};

/// The label of rows that do not count.
const IGNORED: f64 = -100.0;

/// Mean cross entropy between `softmax(logits)` and class indices, with label smoothing (Szegedy et al., 2016) and
/// weights of the classes, as in PyTorch: with `p = log_softmax(logits)`, the loss of a row with label `y` is
/// `-(1 - ε) · w[y] · p[y] - ε / classes · Σ w[c] · p[c]`, and the result is their sum divided by the sum of `w[y]`.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_ops::nn::CrossEntropyLoss;
/// let tape = autobwd::eager();
/// let logits = tape.constant(Tensor::from_vec([2, 2], vec![0.0_f64; 4])?);
/// let labels = tape.constant(Tensor::from_vec([2, 1], vec![0_i64, 1])?);
/// let weights = tape.constant(Tensor::from_vec([2], vec![1.0_f64, 3.0])?);
/// let loss = CrossEntropyLoss::new().label_smoothing(0.1).class_weights(&weights).forward(&logits, &labels);
/// assert!((loss.item()? - 2.0_f64.ln()).abs() < 1e-12);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CrossEntropyLoss {
    smoothing: f64,
    weights: Option<Expr>,
}

impl CrossEntropyLoss {
    /// Without label smoothing and weights: [`Math::mean_cross_entropy`].
    pub fn new() -> CrossEntropyLoss {
        CrossEntropyLoss::default()
    }

    /// Sets `ε`, the part of every label that is spread over all classes; 0 by default.
    #[must_use]
    pub fn label_smoothing(self, smoothing: f64) -> CrossEntropyLoss {
        CrossEntropyLoss { smoothing, ..self }
    }

    /// Sets the weights of the classes, `[classes]` of the dtype of the logits; 1 by default.
    #[must_use]
    pub fn class_weights(self, weights: &Expr) -> CrossEntropyLoss {
        CrossEntropyLoss { weights: Some(weights.clone()), ..self }
    }

    /// The loss of `logits`, `[.., classes]`, for labels `[.., 1]` or `[..]`, rank 0. Rows with label −100 do not count;
    /// NaN if all rows are ignored. Fails for other shapes and dtypes.
    #[track_caller]
    pub fn forward(&self, logits: &Expr, labels: &Expr) -> Expr {
        if !(0.0..=1.0).contains(&self.smoothing) {
            let text = format!("{} is not a number from 0 to 1", self.smoothing);
            let wrong = Error::attr("label_smoothing", text);
            return logits.builder().failed(logits.check().err().unwrap_or(wrong));
        }
        let hard = logits.cross_entropy(labels);
        // One label for each loss: `[rows]` against `[rows, 1]` would broadcast.
        let labels = &match labels.dims().len() < hard.dims().len() {
            true => labels.unsqueeze(&[-1]),
            false => labels.clone(),
        };
        if let Some(weights) = &self.weights {
            let classes = logits.dims().last().copied();
            if !classes.is_some_and(|classes| weights.dims().agrees(&[classes])) {
                let text =
                    format!("class weights of shape [classes] are needed for logits {logits}, not {weights}");
                return failed(&[&hard, weights], text);
            }
        }
        let ignored = emit(FillAnyLike { x: labels.into(), out: New, value: IGNORED, dtype: None }).out;
        let counted = labels.not_equal(&ignored);
        let is_counted = counted.cast(logits.dtype());
        let row_weights = match &self.weights {
            Some(weights) => {
                // Ignored rows have the label 0 here.
                let classes = labels * counted.cast(labels.dtype());
                classes.embedding(&weights.unsqueeze(&[1])).squeeze(&[-1]) * &is_counted
            }
            None => is_counted.clone(),
        };
        let mut losses = hard * &row_weights;
        if self.smoothing != 0.0 {
            let logs = logits.log_softmax(-1);
            let all = match &self.weights {
                Some(weights) => logs * weights,
                None => logs,
            };
            let spread = all.mean_keepdim(&[-1]) * is_counted;
            losses = losses * (1.0 - self.smoothing) - spread * self.smoothing;
        }
        losses.sum(&[]) / row_weights.sum(&[])
    }
}
