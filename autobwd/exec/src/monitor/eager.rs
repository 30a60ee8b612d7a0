//! Logs of eager mode, where the values of a step are at hand.

use std::io::Write;

use autobwd_core::{ARITHMETIC_VERSION, Error, ErrorKind, Expr, Result, with_dtype};

use super::{LogHeader, LoggedParameter, Monitor, SCHEMA, Watched, line};
use crate::norm::l2_norm;

impl<W: Write> Monitor<W> {
    /// A monitor for eager mode, which writes to `log`. The first step that it
    /// [records](Monitor::record_eager) gives the names; one that fails gives none.
    pub fn eager(log: W) -> Monitor<W> {
        let (values, learning_rates, gradients) = Default::default();
        Monitor { has_header: false, ..Monitor::over(log, Watched { values, learning_rates, gradients }) }
    }

    /// Records a step of eager mode: scalars by name, learning rates by name, and pairs of a parameter and its gradient,
    /// as the optimizers of `autobwd_ops` return them. All steps record the same names.
    ///
    /// ```
    /// use autobwd::{DType, exec::Monitor};
    /// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    ///
    /// let net = autobwd::eager();
    /// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// let mut log = vec![];
    /// let mut monitor = Monitor::eager(&mut log);
    /// for step in 1..=3 {
    ///     let (rate, loss) = (0.5 / step as f32, w.square().mean());
    ///     let gradients = Sgd { rate }.minimize(&loss)?.complete()?;
    ///     monitor.record_eager(step, &[("loss", &loss)], &[("rate", rate.into())], &gradients)?;
    /// }
    /// let log = String::from_utf8_lossy(&log);
    /// assert!(log.contains(r#""values":{"loss":9.0},"learning_rates":{"rate":0.5},"gradient_norms":{"w":4.24"#));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// A value that is not a number, or is a variable of a program; other names than in the first step; otherwise
    /// as [`record`](Monitor::record).
    pub fn record_eager(
        &mut self,
        step: u64,
        values: &[(&str, &Expr)],
        learning_rates: &[(&str, f64)],
        gradients: &[(Expr, Expr)],
    ) -> Result<()> {
        let watched = Watched {
            values: values.iter().map(|(name, _)| name.to_string()).collect(),
            learning_rates: learning_rates.iter().map(|(name, _)| name.to_string()).collect(),
            gradients: gradients.iter().map(|(parameter, _)| of_parameter(&parameter.name())).collect(),
        };
        if self.has_header && watched != self.watched {
            let text =
                format!("step {step} has other values, learning rates or parameters than the first one");
            return Err(Error::new(ErrorKind::Data, text));
        }
        let (rates, norms) = (values.len(), values.len() + learning_rates.len());
        let item = |k: usize, _: &str| match values.get(k) {
            Some((_, value)) => value.item(),
            None => Ok(learning_rates[k - rates].1),
        };
        let norm = |k: usize, _: &str| {
            let gradient = gradients[k - norms].1.tensor()?;
            with_dtype!(gradient.dtype(), T => Ok(l2_norm(gradient.slice::<T>()?)))
        };
        let record = self.record_of(&watched, step, None, item, norm)?;
        if !self.has_header {
            let all = values.iter().map(|(_, value)| *value).chain(gradients.iter().map(|(p, _)| p));
            self.write(&header(&watched, all)?)?;
            (self.watched, self.has_header) = (watched, true);
        }
        self.write_step(&record)
    }
}

/// The names of a parameter and its gradient.
fn of_parameter(name: &str) -> (String, String) {
    (name.to_string(), format!("{name}@GRAD"))
}

/// The first line: also parameters of the builder without gradient.
fn header<'a>(watched: &Watched, mut all: impl Iterator<Item = &'a Expr>) -> Result<Vec<u8>> {
    let parameters = all.next().map(|expr| expr.builder().parameters()).unwrap_or_default();
    let names: Vec<String> = parameters.iter().map(Expr::name).collect();
    let has_gradient = |name: &&String| watched.gradients.iter().any(|(parameter, _)| parameter == *name);
    let without = names.iter().filter(|name| !has_gradient(name));
    let without = without.map(|name| LoggedParameter { name, gradient: None });
    let with =
        watched.gradients.iter().map(|(name, gradient)| LoggedParameter { name, gradient: Some(gradient) });
    line(&LogHeader {
        schema: SCHEMA,
        values: &watched.values,
        learning_rates: &watched.learning_rates,
        parameters: with.chain(without).collect(),
        arithmetic: ARITHMETIC_VERSION,
    })
}
