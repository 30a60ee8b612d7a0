//! Gradients of imported models, compared with central differences in float64.

use autobwd::{
    DType, Executor, Feed, New, Result, Tensor,
    backward::{GradientOptions, gradients},
    program::Program,
};
use autobwd_ops::{Math, Model, fill::AssignValue};

/// Elements of an input that are varied.
const ELEMENTS: usize = 8;

/// The largest number of elements of an output.
const LIMIT: usize = 1 << 20;

/// Relative distance of a derivative from a difference.
const TOLERANCE: f64 = 1e-4;

/// The step of differences.
const STEP: f64 = 1e-5;

/// A loss of a model's outputs, and the inputs that it is differentiated by.
struct Derivatives {
    program: Program,
    loss: String,
    /// Each floating point input with the variable of its gradient, if it has one.
    inputs: Vec<(String, Option<String>)>,
}

/// Compares the gradients of a model in float64; the first difference, or the number of gradients that were compared.
pub(super) fn check(model: Model, feeds: &[(String, Tensor)]) -> Result<Result<usize, String>> {
    let mut feeds = feeds.to_vec();
    for (_, tensor) in feeds.iter_mut().filter(|(_, tensor)| tensor.dtype() == DType::F32) {
        *tensor = Tensor::from_vec(tensor.dims(), tensor.to_f64s())?;
    }
    let mut executor = Executor::with_threads(1);
    let Some(derivatives) = differentiated(&model, &mut executor, &feeds)? else { return Ok(Ok(0)) };
    let mut checked = 0;
    for (name, gradient) in &derivatives.inputs {
        let Some(at) = feeds.iter().position(|(feed, _)| feed == name) else { continue };
        let computed = match gradient {
            Some(gradient) => fetch(&derivatives, &model, &mut executor, &feeds, gradient)?.to_f64s(),
            None => vec![0.0; feeds[at].1.numel()],
        };
        let count = computed.len();
        for i in (0..count).step_by(count.div_ceil(ELEMENTS).max(1)) {
            let Some(difference) = difference(&derivatives, &model, &mut executor, &mut feeds, (at, i))?
            else {
                continue;
            };
            let scale = 1.0 + computed[i].abs().max(difference.abs());
            if (computed[i] - difference).abs() > TOLERANCE * scale || computed[i].is_nan() {
                let found = if gradient.is_some() { format!("{}", computed[i]) } else { "missing".into() };
                return Ok(Err(format!(
                    "the derivative by `{name}`[{i}] is {found}, the difference {difference}"
                )));
            }
        }
        checked += usize::from(gradient.is_some());
    }
    Ok(Ok(checked))
}

/// The model with a loss and its gradients; `None` if no floating point input leads to a floating point output.
fn differentiated(
    model: &Model,
    executor: &mut Executor,
    feeds: &[(String, Tensor)],
) -> Result<Option<Derivatives>> {
    let borrowed: Vec<(&str, &dyn Feed)> = borrowed(feeds, model);
    let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
    let outputs = executor.run(&model.program, &mut model.scope.clone(), &borrowed, &fetches)?;
    let net = model.builder();
    let mut loss = None;
    for (name, output) in model.fetches.iter().zip(&outputs) {
        let finite = output.to_f64s().iter().all(|x| x.is_finite());
        if output.dtype() != DType::F64 || output.numel() == 0 || output.numel() > LIMIT || !finite {
            continue;
        }
        let factors = (0..output.numel()).map(|i| 0.5 + (i as f64 * 0.618_034).fract()).collect();
        let factors = net.emit(AssignValue {
            out: New,
            shape: output.dims().iter().map(|dim| *dim as i32).collect(),
            dtype: DType::F64,
            bool_values: vec![],
            fp32_values: vec![],
            int32_values: vec![],
            int64_values: vec![],
            fp64_values: factors,
        });
        let part = (net.expr(name) * &factors.out).sum(&[]);
        loss = Some(loss.map_or(part.clone(), |loss| loss + part));
    }
    let Some(loss) = loss else { return Ok(None) };
    let mut program = (*net.program()?).clone();
    let is_float = |name: &&String| feeds.iter().any(|(feed, x)| feed == *name && x.dtype() == DType::F64);
    let inputs: Vec<&String> = model.feeds.iter().filter(is_float).collect();
    if inputs.is_empty() {
        return Ok(None);
    }
    let names: Vec<&str> = inputs.iter().map(|name| name.as_str()).collect();
    let found = match gradients(&mut program, &[&loss.name()], &names, &GradientOptions::default()) {
        // The reference does not differentiate it either.
        Err(e) if e.to_string().contains("operator `unique`") => return Ok(None),
        found => found?,
    };
    let inputs = inputs.into_iter().cloned().zip(found.entries());
    let inputs = inputs.map(|(name, grad)| (name, grad.map(|grad| program.name(grad).to_string())));
    // The reference does not differentiate by boxes either.
    let has_boxes = program.root().ops.iter().any(|op| op.ty == "roi_align");
    let inputs = inputs.filter(|(_, grad)| grad.is_some() || !has_boxes).collect();
    Ok(Some(Derivatives { loss: loss.name(), inputs, program }))
}

fn borrowed<'a>(feeds: &'a [(String, Tensor)], model: &Model) -> Vec<(&'a str, &'a dyn Feed)> {
    let used = feeds.iter().filter(|(name, _)| model.feeds.contains(name));
    used.map(|(name, tensor)| (name.as_str(), tensor as &dyn Feed)).collect()
}

fn fetch(
    derivatives: &Derivatives,
    model: &Model,
    executor: &mut Executor,
    feeds: &[(String, Tensor)],
    name: &str,
) -> Result<Tensor> {
    let mut fetched =
        executor.run(&derivatives.program, &mut model.scope.clone(), &borrowed(feeds, model), &[name])?;
    fetched.pop().ok_or_else(|| autobwd::Error::data("nothing was fetched"))
}

/// The central difference of the loss; `None` at a kink or a jump, where both sides differ.
fn difference(
    derivatives: &Derivatives,
    model: &Model,
    executor: &mut Executor,
    feeds: &mut [(String, Tensor)],
    (at, i): (usize, usize),
) -> Result<Option<f64>> {
    let x = feeds[at].1.slice::<f64>()?[i];
    if !x.is_finite() {
        return Ok(None);
    }
    let step = STEP * x.abs().max(1.0);
    let mut losses = [0.0; 5];
    for (loss, factor) in losses.iter_mut().zip([-2.0, -1.0, 0.0, 1.0, 2.0]) {
        feeds[at].1.slice_mut::<f64>()?[i] = x + factor * step;
        // Positions may leave the range of an index or of a function.
        match fetch(derivatives, model, executor, feeds, &derivatives.loss) {
            Ok(value) => *loss = value.item()?,
            Err(_) => *loss = f64::NAN,
        }
    }
    feeds[at].1.slice_mut::<f64>()?[i] = x;
    let slopes: Vec<f64> = losses.windows(2).map(|pair| (pair[1] - pair[0]) / step).collect();
    let central = (losses[3] - losses[1]) / (2.0 * step);
    let smooth = slopes.iter().all(|slope| (slope - central).abs() <= 1e-2 * (1.0 + central.abs()));
    Ok((central.is_finite() && smooth).then_some(central))
}
