//! L-BFGS.

use std::collections::VecDeque;

use autobwd::{Error, ErrorKind, Executor, Expr, Feed, Program, Result, Scope, Tensor};

/// Steps are halved so often at most.
const HALVINGS: usize = 40;
/// The part of the decrease that the gradient promises which a step must achieve (Armijo, 1966).
const DECREASE: f64 = 1e-4;

/// L-BFGS (Liu and Nocedal, 1989) with a backtracking line search, for losses that are the same at each run: the whole
/// data as one batch, no dropout.
///
/// It is not part of a program: a step runs a program with the loss and its gradients, of
/// [`compute_gradients`](super::compute_gradients), several times, and sets the parameters in the scope. It computes in
/// float64. Its state is lost with it; a run that is resumed starts without history.
///
/// ```
/// # use autobwd::{Backward, Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math};
/// use autobwd_ops::optim::{Lbfgs, compute_gradients};
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F64, &[2], |w| Init::Normal(0.0, 1.0).emit(w, 7));
/// let loss = (w.square() + w.exp()).sum(&[]);
/// let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let mut optimizer = Lbfgs::new();
/// let mut last = f64::INFINITY;
/// for _ in 0..20 {
///     last = optimizer.step(&mut executor, &*net.program()?, &mut scope, &[], &loss, &gradients)?;
/// }
/// assert!((last - 1.654_368_05).abs() < 1e-8, "{last}");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lbfgs {
    history: usize,
    /// The last changes of point and gradient, oldest first.
    changes: VecDeque<Change>,
}

#[derive(Clone, Debug)]
struct Change {
    point: Vec<f64>,
    gradient: Vec<f64>,
    /// Their dot product, which is positive.
    product: f64,
}

impl Default for Lbfgs {
    fn default() -> Lbfgs {
        Lbfgs::new()
    }
}

impl Lbfgs {
    /// Remembers 10 steps.
    pub fn new() -> Lbfgs {
        Lbfgs { history: 10, changes: VecDeque::new() }
    }

    /// Sets the number of steps that are remembered; 10 by default. With 0, it is gradient descent with a line search.
    #[must_use]
    pub fn history(self, history: usize) -> Lbfgs {
        Lbfgs { history, ..self }
    }

    /// One step: returns the loss after it. If no step decreases the loss, as at a minimum, the parameters stay. After an
    /// error in the middle of the step, they may be those of a trial.
    ///
    /// # Errors
    /// A loss that is not finite before the step; gradients that do not have the shapes of the parameters; those of
    /// [`Executor::run`].
    pub fn step(
        &mut self,
        executor: &mut Executor,
        program: &Program,
        scope: &mut Scope,
        feeds: &[(&str, &dyn Feed)],
        loss: &Expr,
        gradients: &[(Expr, Expr)],
    ) -> Result<f64> {
        let names: Vec<String> = gradients.iter().map(|(parameter, _)| parameter.name()).collect();
        let fetched: Vec<String> = [loss]
            .into_iter()
            .chain(gradients.iter().map(|(_, gradient)| gradient))
            .map(Expr::name)
            .collect();
        let fetched: Vec<&str> = fetched.iter().map(String::as_str).collect();
        let mut evaluate = |scope: &mut Scope| -> Result<(f64, Vec<f64>)> {
            let found = executor.run(program, scope, feeds, &fetched)?;
            Ok((found[0].item()?, found[1..].iter().flat_map(|gradient| gradient.to_f64s()).collect()))
        };
        let start = point(scope, &names)?;
        let (before, gradient) = evaluate(scope)?;
        if gradient.len() != start.len() {
            let text = format!("{} parameters have gradients of {} elements", start.len(), gradient.len());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        if !before.is_finite() {
            return Err(Error::new(ErrorKind::Data, format!("the loss is {before} before the step")));
        }
        let norm = dot(&gradient, &gradient).sqrt();
        if norm == 0.0 {
            return Ok(before);
        }
        let mut direction = self.direction(&gradient);
        let mut promise = dot(&direction, &gradient);
        if promise >= 0.0 {
            self.changes.clear();
            direction = gradient.iter().map(|x| -x).collect();
            promise = -norm * norm;
        }
        // Without history, the gradient says nothing about the length of a step.
        let mut length = if self.changes.is_empty() && norm > 1.0 { 1.0 / norm } else { 1.0 };
        for _ in 0..HALVINGS {
            let next: Vec<f64> = start.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            set_point(scope, &names, &next)?;
            let (after, new_gradient) = evaluate(scope)?;
            if after <= before + DECREASE * length * promise && after < before {
                self.remember(&start, &next, &gradient, &new_gradient);
                return Ok(after);
            }
            length /= 2.0;
        }
        set_point(scope, &names, &start)?;
        self.changes.clear();
        Ok(before)
    }

    /// The gradient times the estimated inverse Hessian, with the opposite sign: the two loops of Nocedal (1980).
    fn direction(&self, gradient: &[f64]) -> Vec<f64> {
        let mut direction: Vec<f64> = gradient.iter().map(|x| -x).collect();
        let mut weights = vec![];
        for change in self.changes.iter().rev() {
            let weight = dot(&change.point, &direction) / change.product;
            add(&mut direction, -weight, &change.gradient);
            weights.push(weight);
        }
        if let Some(last) = self.changes.back() {
            let scale = last.product / dot(&last.gradient, &last.gradient);
            direction.iter_mut().for_each(|x| *x *= scale);
        }
        for (change, weight) in self.changes.iter().zip(weights.into_iter().rev()) {
            let other = dot(&change.gradient, &direction) / change.product;
            add(&mut direction, weight - other, &change.point);
        }
        direction
    }

    /// Remembers a step, unless the curvature along it is not positive.
    fn remember(&mut self, start: &[f64], end: &[f64], before: &[f64], after: &[f64]) {
        let difference = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
        let (point, gradient) = (difference(end, start), difference(after, before));
        let product = dot(&point, &gradient);
        if product > f64::EPSILON * dot(&gradient, &gradient) {
            self.changes.push_back(Change { point, gradient, product });
        }
        while self.changes.len() > self.history {
            self.changes.pop_front();
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `to ← to + factor · x`
fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

/// The elements of these values, one after the other.
fn point(scope: &Scope, names: &[String]) -> Result<Vec<f64>> {
    let mut all = vec![];
    for name in names {
        all.extend(scope.get(name)?.to_f64s());
    }
    Ok(all)
}

fn set_point(scope: &mut Scope, names: &[String], mut point: &[f64]) -> Result<()> {
    for name in names {
        let count = scope.get(name)?.numel();
        let (own, rest) = point.split_at(count.min(point.len()));
        let value = scope.get(name)?.meta();
        scope.set(name, Tensor::from_f64s(value.dtype, value.dims.known().unwrap_or_default(), own)?);
        point = rest;
    }
    Ok(())
}
