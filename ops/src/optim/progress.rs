//! Followers of a loss: the learning rate that falls on a plateau, and early stopping.

use autobwd::{Error, ErrorKind, Result, Scope, Tensor};

use super::schedule::set_rate;

/// The best value so far, and for how long it has not improved.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BestValue {
    best: f64,
    /// Values since the best one.
    since: u64,
}

impl BestValue {
    const NONE: BestValue = BestValue { best: f64::INFINITY, since: 0 };

    /// Whether `value` is less than the best by more than `margin`; NaN is not.
    fn observe(&mut self, value: f64, margin: f64) -> bool {
        let improved = value < self.best - margin;
        (self.best, self.since) = if improved { (value, 0) } else { (self.best, self.since + 1) };
        improved
    }
}

/// The numbers of a state, as they are kept in a tensor.
fn numbers<const N: usize>(state: &Tensor) -> Result<[f64; N]> {
    let wrong = || {
        let text = format!("a state of shape [{N}] and dtype float64 is needed, not {}", state.meta());
        Error::new(ErrorKind::Shape, text)
    };
    state.slice::<f64>()?.try_into().map_err(|_| wrong())
}

/// A learning rate that falls when a loss stops improving (`ReduceLROnPlateau` in PyTorch).
///
/// ```
/// use autobwd_ops::optim::Plateau;
/// let mut plateau = Plateau::new(0.1).factor(0.5).patience(1);
/// let rates: Vec<f64> = [3.0, 2.0, 2.0, 2.0, 2.0, 1.0].map(|loss| plateau.observe(loss)).into();
/// assert_eq!(rates, [0.1, 0.1, 0.1, 0.05, 0.05, 0.05]);
/// // The state is a tensor, which a scope keeps: a resumed run goes on with it.
/// let mut resumed = Plateau::new(0.1).factor(0.5).patience(1);
/// resumed.restore(&plateau.state()?)?;
/// assert_eq!(resumed, plateau);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    factor: f64,
    patience: u64,
    threshold: f64,
    min_rate: f64,
    rate: f64,
    loss: BestValue,
}

impl Plateau {
    /// Starts with this rate; multiplies it by 0.1 after more than 10 losses that are not less than the best by 1e-4 of
    /// it.
    pub fn new(rate: f64) -> Plateau {
        Plateau { factor: 0.1, patience: 10, threshold: 1e-4, min_rate: 0.0, rate, loss: BestValue::NONE }
    }

    /// Sets the factor by which the rate falls; 0.1 by default.
    #[must_use]
    pub fn factor(self, factor: f64) -> Plateau {
        Plateau { factor, ..self }
    }

    /// Sets the number of losses without improvement that are tolerated; 10 by default.
    #[must_use]
    pub fn patience(self, patience: u64) -> Plateau {
        Plateau { patience, ..self }
    }

    /// Sets the least improvement as a fraction of the best loss; 1e-4 by default.
    #[must_use]
    pub fn threshold(self, threshold: f64) -> Plateau {
        Plateau { threshold, ..self }
    }

    /// Sets the least rate; 0 by default.
    #[must_use]
    pub fn min_rate(self, min_rate: f64) -> Plateau {
        Plateau { min_rate, ..self }
    }

    /// The learning rate.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes the loss of an epoch; returns the rate from now on. NaN is no improvement.
    pub fn observe(&mut self, loss: f64) -> f64 {
        let margin = if self.loss.best.is_finite() { self.loss.best.abs() * self.threshold } else { 0.0 };
        self.loss.observe(loss, margin);
        if self.loss.since > self.patience {
            self.rate = (self.rate * self.factor).max(self.min_rate);
            self.loss.since = 0;
        }
        self.rate
    }

    /// Sets the variable of a learning rate in the scope, such as `learning_rate_0`.
    ///
    /// # Errors
    /// As [`set_rate`](super::set_rate).
    pub fn set(&self, scope: &mut Scope, name: &str) -> Result<()> {
        set_rate(scope, name, self.rate)
    }

    /// The state, float64 `[3]`: rate, best loss, losses since.
    ///
    /// # Errors
    /// No memory.
    pub fn state(&self) -> Result<Tensor> {
        Tensor::from_vec([3], vec![self.rate, self.loss.best, self.loss.since as f64])
    }

    /// Continues with the state of another run.
    ///
    /// # Errors
    /// Another dtype or shape.
    pub fn restore(&mut self, state: &Tensor) -> Result<()> {
        let [rate, best, since] = numbers(state)?;
        (self.rate, self.loss) = (rate, BestValue { best, since: since as u64 });
        Ok(())
    }
}

/// Tells when to stop training: when a loss has not improved for some time (Prechelt, 1998).
///
/// ```
/// use autobwd_ops::optim::EarlyStopping;
/// let mut stopping = EarlyStopping::new(2);
/// let mut epochs = 0;
/// for loss in [3.0, 2.0, 2.5, 2.5, 2.5] {
///     epochs += 1;
///     if stopping.observe(loss) {
///         // … save the scope: this is the best model so far.
///     }
///     if stopping.is_over() {
///         break;
///     }
/// }
/// assert_eq!((epochs, stopping.best()), (4, 2.0));
/// ```
///
/// A score that is to rise is observed with its sign changed.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    patience: u64,
    min_delta: f64,
    loss: BestValue,
}

impl EarlyStopping {
    /// Stops at the `patience`-th loss in a row without improvement.
    pub fn new(patience: u64) -> EarlyStopping {
        EarlyStopping { patience, min_delta: 0.0, loss: BestValue::NONE }
    }

    /// Sets the least improvement; 0 by default, where any smaller loss is one.
    #[must_use]
    pub fn min_delta(self, min_delta: f64) -> EarlyStopping {
        EarlyStopping { min_delta, ..self }
    }

    /// Takes a loss; returns whether it is the best so far. NaN is not.
    pub fn observe(&mut self, loss: f64) -> bool {
        self.loss.observe(loss, self.min_delta)
    }

    /// Whether it is time to stop.
    pub fn is_over(&self) -> bool {
        self.loss.since >= self.patience
    }

    /// The best loss so far; infinite before the first.
    pub fn best(&self) -> f64 {
        self.loss.best
    }

    /// The state, float64 `[2]`: best loss, losses since.
    ///
    /// # Errors
    /// No memory.
    pub fn state(&self) -> Result<Tensor> {
        Tensor::from_vec([2], vec![self.loss.best, self.loss.since as f64])
    }

    /// Continues with the state of another run.
    ///
    /// # Errors
    /// Another dtype or shape.
    pub fn restore(&mut self, state: &Tensor) -> Result<()> {
        let [best, since] = numbers(state)?;
        self.loss = BestValue { best, since: since as u64 };
        Ok(())
    }
}
