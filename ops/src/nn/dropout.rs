use autobwd::{Builder, Expr};

use super::StepSeed;
use crate::Math;

/// Dropout for training, with another mask at each step (Srivastava et al., 2014).
///
/// Masks depend on the seed, the layer's name and the number of steps only, on every machine: layers with one seed have
/// different masks.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::Dropout;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 8]);
/// let trained = Dropout::new(&net, 0.1, 7).forward(&x);
/// assert_eq!(trained.dims().to_string(), "[-1, 8]");
/// ```
///
/// At inference, the layer is left out: kept elements are scaled by `1 / (1 - p)` in training.
/// [`Builder::eval_mode`] does so.
#[derive(Debug)]
pub struct Dropout {
    /// The seed of the last step's mask; it counts steps.
    pub seed: Expr,
    probability: f32,
}

impl Dropout {
    /// A layer that drops elements with that probability. Adds a variable to the program, `dropout_0.seed`: a counter
    /// that starts at a 62-bit hash of `seed` and its name.
    #[track_caller]
    pub fn new(net: &Builder, probability: f32, seed: i32) -> Dropout {
        Dropout::of(net, &net.layer_name("dropout"), probability, seed)
    }

    /// As [`new`](Dropout::new), with a name within the current [name scope](Builder::name_scope).
    #[track_caller]
    pub fn named(net: &Builder, name: &str, probability: f32, seed: i32) -> Dropout {
        Dropout::of(net, &net.scoped(name), probability, seed)
    }

    #[track_caller]
    fn of(net: &Builder, layer: &str, probability: f32, seed: i32) -> Dropout {
        let seed = StepSeed::of(net, layer, seed).counter;
        Dropout { seed, probability }
    }

    /// Drops elements of `x` and scales the others; in [evaluation mode](Builder::eval_mode), `x` itself. Fails for a
    /// probability outside [0, 1], and for dtypes other than floating point.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        // `Math::dropout` does the same, but the seed must not count on.
        if x.builder().is_eval_mode() {
            return x.clone();
        }
        let seed = StepSeed { counter: self.seed.clone() }.next();
        x.dropout(self.probability, &seed)
    }
}
