use autobwd::{Arg, Builder, DType, Expr, emit};

use crate::{Math, fill::FillConstant, increment::Increment, random::stream};

/// A seed that is another one at each run: a counter in the scope that starts at a 62-bit hash of a seed and its name. So
/// random numbers depend on the seed, the name and the number of steps only, on every machine.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn::StepSeed};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 8]);
/// let seed = StepSeed::new(&net, "noise", 7);
/// let noisy = &x + x.randn_like(&seed.next()) * 0.1;
/// # assert!(noisy.check().is_ok() && seed.counter.name() == "noise.seed");
/// ```
#[derive(Debug)]
pub struct StepSeed {
    /// The seed of the last step.
    pub counter: Expr,
}

impl StepSeed {
    /// Adds the counter to the program, with the suffix `.seed`, as layers do: `noise.seed` for the name `noise`, within
    /// the current [name scope](Builder::name_scope). Fails for a name in use.
    #[track_caller]
    pub fn new(net: &Builder, name: &str, seed: i32) -> StepSeed {
        StepSeed::of(net, &net.scoped(name), seed)
    }

    /// The counter of a layer with a full name.
    #[track_caller]
    pub(super) fn of(net: &Builder, layer: &str, seed: i32) -> StepSeed {
        let name = format!("{layer}.seed");
        let first = stream(seed, &name) >> 2;
        let counter = net.persistable(&name, DType::I64, &[1], |counter| {
            let (shape, dtype, str_value) = (vec![1], DType::I64, first.to_string());
            let op = FillConstant { shape, dtype, str_value, ..FillConstant::of(Arg::from(counter)) };
            counter.builder().emit(op).out
        });
        StepSeed { counter: counter.freeze() }
    }

    /// The next seed, int64 `[1]`: counts on at each run.
    #[track_caller]
    pub fn next(&self) -> Expr {
        emit(Increment { x: Arg::from(&self.counter), out: (&self.counter).into(), step: 1.0 }).out
    }
}

/// Normally distributed noise for training, with other numbers at each step: `x + std · z`.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::GaussianNoise;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 8]);
/// let noise = GaussianNoise::new(&net, 0.1, 7);
/// assert!(net.eval_mode(|| noise.forward(&x)).is(&x));
/// assert_eq!(noise.forward(&x).dims().to_string(), "[-1, 8]");
/// ```
#[derive(Debug)]
pub struct GaussianNoise {
    /// The seed of the last step.
    pub seed: StepSeed,
    std: f64,
}

impl GaussianNoise {
    /// A layer with that standard deviation. Adds a counter to the program, `gaussian_noise_0.seed`.
    #[track_caller]
    pub fn new(net: &Builder, std: f64, seed: i32) -> GaussianNoise {
        GaussianNoise { seed: StepSeed::of(net, &net.layer_name("gaussian_noise"), seed), std }
    }

    /// Adds noise to `x`; in [evaluation mode](Builder::eval_mode), `x` itself. Fails for dtypes other than floating
    /// point.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        match x.builder().is_eval_mode() {
            true => x.clone(),
            false => x + x.randn_like(&self.seed.next()) * self.std,
        }
    }
}
