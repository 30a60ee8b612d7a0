//! Progress of loops, for people in front of a terminal.

use std::{borrow::Cow, fmt};

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a loop on standard error: a bar, the number of steps, a text such as the loss, and the time that is
/// left. Nothing is written if standard error is no terminal. The bar disappears with the value.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_data::{Loader, Progress, TensorDataset};
///
/// let data = TensorDataset::new([("x", Tensor::from_vec([10], vec![1.0_f32; 10])?)])?;
/// let mut loader = Loader::builder(data).batch(4).build()?;
/// let progress = Progress::new(2 * loader.batches() as u64);
/// while loader.position().epoch < 2 {
///     for batch in loader.epoch() {
///         let loss = batch?.len(); // of a training step
///         progress.show(format!("loss {loss:.3}"));
///         progress.advance();
///     }
///     progress.suspend(|| println!("epoch {}", loader.position().epoch));
/// }
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Progress {
    bar: ProgressBar,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, steps) = (self.bar.position(), self.bar.length());
        f.debug_struct("Progress").field("done", &done).field("steps", &steps).finish_non_exhaustive()
    }
}

impl Progress {
    /// The progress of a loop with so many steps.
    pub fn new(steps: u64) -> Progress {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Progress { bar: ProgressBar::new(steps).with_style(style) }
    }

    /// The progress of a resumed loop, after the steps that are done already.
    #[must_use]
    pub fn resume_at(self, done: u64) -> Progress {
        self.bar.set_position(done);
        // These steps took no time of this process.
        self.bar.reset_eta();
        self
    }

    /// Counts a step.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Shows a text next to the bar.
    pub fn show(&self, text: impl Into<Cow<'static, str>>) {
        self.bar.set_message(text);
    }

    /// Hides the bar while a function prints.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
