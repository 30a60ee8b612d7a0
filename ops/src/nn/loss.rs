use autobwd::{Error, Expr, New, Result, emit};

use super::{Embedding, Linear};
use crate::{
    Math,
    fill::FillAnyLike,
    loss::{LinearCrossEntropy, LinearCrossEntropyAttrs},
    math::{failed, in_dtype},
};

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
    z_loss: f64,
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

    /// Sets the factor of `ln² Σ exp(logits)`, which is added to the loss of each row that counts and keeps logits
    /// small (Chowdhery et al., 2022); 0 by default.
    #[must_use]
    pub fn z_loss(self, factor: f64) -> CrossEntropyLoss {
        CrossEntropyLoss { z_loss: factor, ..self }
    }

    /// The loss of `logits`, `[.., classes]`, for labels `[.., 1]` or `[..]`, rank 0. Rows with label −100 do not
    /// count; NaN if all rows are ignored. Fails for other shapes and dtypes.
    #[track_caller]
    pub fn forward(&self, logits: &Expr, labels: &Expr) -> Expr {
        if let Err(wrong) = self.check() {
            return logits.builder().failed(logits.check().err().unwrap_or(wrong));
        }
        let hard = logits.cross_entropy(labels);
        if let Some(weights) = &self.weights {
            let classes = logits.dims().last().copied();
            if !classes.is_some_and(|classes| weights.dims().agrees(&[classes])) {
                let text =
                    format!("class weights of shape [classes] are needed for logits {logits}, not {weights}");
                return failed(&[&hard, weights], text);
            }
        }
        let [is_counted, row_weights] = self.row_weights(&hard, labels);
        let mut losses = hard * &row_weights;
        if self.smoothing != 0.0 {
            let logs = logits.log_softmax(-1);
            let all = match &self.weights {
                Some(weights) => logs * weights,
                None => logs,
            };
            let spread = all.mean_keepdim(&[-1]) * &is_counted;
            losses = losses * (1.0 - self.smoothing) - spread * self.smoothing;
        }
        if self.z_loss != 0.0 {
            losses = losses + logits.logsumexp_keepdim(&[-1]).square() * &is_counted * self.z_loss;
        }
        losses.sum(&[]) / row_weights.sum(&[])
    }

    /// The loss of the outputs of a layer for `x`, as [`forward`](CrossEntropyLoss::forward) of these, without all of
    /// them in memory: they are computed twice instead, a tile at a time ([`LinearCrossEntropy`]). The loss of 16-bit
    /// outputs is float32.
    ///
    /// ```
    /// use autobwd::{Builder, DType};
    /// use autobwd_ops::nn::{CrossEntropyLoss, Linear};
    ///
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 512, 768]);
    /// let next = net.input("next", DType::I64, &[-1, 512]);
    /// let head = Linear::builder(&net, 768, 151_936).bias(None).build();
    /// let loss = CrossEntropyLoss::new().z_loss(1e-4).of_linear(&x, &head, &next);
    /// assert_eq!(loss.dims().to_string(), "[]");
    /// ```
    #[track_caller]
    pub fn of_linear(&self, x: &Expr, layer: &Linear, labels: &Expr) -> Expr {
        self.of_product(x, (&layer.weight, layer.is_transposed), layer.bias.as_ref(), labels)
    }

    /// The loss of the products of `x`, `[.., width]`, and the rows of a table, as
    /// [`of_linear`](CrossEntropyLoss::of_linear) for a layer with the table as weight: words as input and output.
    #[track_caller]
    pub fn of_tied(&self, x: &Expr, table: &Embedding, labels: &Expr) -> Expr {
        self.of_product(x, (&table.weight, true), None, labels)
    }

    #[track_caller]
    fn of_product(
        &self,
        x: &Expr,
        (weight, trans_weight): (&Expr, bool),
        bias: Option<&Expr>,
        labels: &Expr,
    ) -> Expr {
        if let Err(wrong) = self.check() {
            return x.builder().failed(x.check().err().unwrap_or(wrong));
        }
        let cross_entropy = LinearCrossEntropyAttrs {
            trans_weight,
            ignore_index: IGNORED as i32,
            label_smoothing: self.smoothing as f32,
            z_loss: self.z_loss as f32,
        };
        let losses = emit(LinearCrossEntropy {
            x: x.into(),
            weight: weight.into(),
            bias: bias.map(Into::into),
            label: labels.into(),
            class_weight: self.weights.as_ref().map(Into::into),
            loss: New,
            log_sum: New,
            x_gradient: None,
            cross_entropy,
        })
        .loss;
        let [_, row_weights] = self.row_weights(&losses, labels);
        losses.sum(&[]) / row_weights.sum(&[])
    }

    fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.smoothing) {
            return Err(Error::attr(
                "label_smoothing",
                format!("{} is not a number from 0 to 1", self.smoothing),
            ));
        }
        if !(0.0..f64::INFINITY).contains(&self.z_loss) {
            return Err(Error::attr("z_loss", format!("{} is not a finite number from 0", self.z_loss)));
        }
        Ok(())
    }

    /// 1 for rows that count, and the weights of their labels; 0 for other rows. `losses` have one number for each row.
    fn row_weights(&self, losses: &Expr, labels: &Expr) -> [Expr; 2] {
        // One label for each loss: `[rows]` against `[rows, 1]` would broadcast.
        let labels = &match labels.dims().len() < losses.dims().len() {
            true => labels.unsqueeze(&[-1]),
            false => labels.clone(),
        };
        let ignored = emit(FillAnyLike { x: labels.into(), out: New, value: IGNORED, dtype: None }).out;
        let counted = labels.not_equal(&ignored);
        let is_counted = counted.cast(losses.dtype());
        let row_weights = match &self.weights {
            Some(weights) => {
                // Ignored rows have the label 0 here.
                let classes = labels * counted.cast(labels.dtype());
                let row_weights = classes.embedding(&weights.unsqueeze(&[1])).squeeze(&[-1]);
                in_dtype(&row_weights, losses.dtype()) * &is_counted
            }
            None => is_counted.clone(),
        };
        [is_counted, row_weights]
    }
}
