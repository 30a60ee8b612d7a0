//! Models.

mod variables;

use std::path::PathBuf;

use autobwd::{
    Executor, Program, Result, Scope, Tensor, explain,
    program::{ProgramSignature, SignatureEntry},
    tensor::save_tensors,
    viewer::ToHtml,
};
use autobwd_cli::save_model;
use autobwd_ops::{Model, model::ParameterSummary, optim::OptimizerSpec};
use pyo3::{
    Bound, IntoPyObjectExt, PyAny, PyResult, Python, pyclass, pymethods,
    types::{PyAnyMethods, PyDict, PyTuple, PyTupleMethods},
};

use crate::{
    arguments::{Bytes, Shapes},
    arrays::{input_array, to_numpy},
    error::{raised, refused},
    plan::PyPlan,
    training::{StepBudget, with_gradients, with_loss, with_updates},
    values::SharedValues,
};
use variables::{arrays, copy_of, pairs};

/// A model: a program with its inputs, its outputs, and the values that it keeps.
///
/// Models that are made from a model, such as a training step, share its values: what one changes, all see.
///
/// >>> model = autobwd.load("images.onnx")
/// >>> model
/// <autobwd.Model: x float32 [N, 1, H, W] -> scores float32 [N, 3]>
/// >>> model.run({"x": np.zeros([2, 1, 8, 10], np.float32)})["scores"].shape
/// (2, 3)
#[pyclass(frozen, module = "autobwd", name = "Model")]
pub(crate) struct PyModel {
    /// Its signature names the inputs and outputs.
    program: Program,
    values: SharedValues,
}

#[pymethods]
impl PyModel {
    /// The inputs: their dtypes and shapes by name.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.specs(py, pairs(&self.program.signature().inputs))
    }

    /// The outputs: their dtypes and shapes by name.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.specs(py, pairs(&self.program.signature().outputs))
    }

    /// The parameters: their dtypes and shapes by name.
    #[getter]
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let names = self.program.parameters().map(|var| self.program.name(var));
        self.specs(py, names.map(|name| (name, name)))
    }

    /// The values that the model keeps: copies, as arrays by name.
    ///
    /// >>> autobwd.load("images.onnx").state_dict()["head.bias"].dtype
    /// dtype('float32')
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.values.with(py, |values| -> Result<Vec<(&str, Tensor)>> {
            let kept = self.kept().filter_map(|name| Some((name, values.scope.find(name)?)));
            kept.map(|(name, value)| Ok((name, copy_of(value)?))).collect()
        });
        arrays(py, found.map_err(raised)?)
    }

    /// Replaces values that the model keeps, by name; names that are left out keep theirs.
    fn load_state_dict(&self, py: Python<'_>, values: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut given: Vec<(String, Tensor)> = vec![];
        for (name, value) in values {
            let name: String = name.extract()?;
            let Some(declared) = self.kept().find(|kept| *kept == name).and_then(|name| self.meta(name))
            else {
                return refused(format!("the model keeps no value `{name}`"));
            };
            let value = input_array(&name, &value, Some(declared.dtype))?.to_tensor().map_err(raised)?;
            if !declared.agrees(&value.meta()) {
                return refused(format!("`{name}` is {declared}, not {}", value.meta()));
            }
            given.push((name, value));
        }
        self.values.with(py, |values| {
            given.into_iter().for_each(|(name, value)| values.scope.set(&name, value));
        });
        Ok(())
    }

    /// Runs the model on arrays by name; returns the outputs by name, or these variables of the program instead.
    ///
    /// An input is an array in any layout, or an object that NumPy views without a copy, such as a tensor of PyTorch on the
    /// CPU. It is copied once, into the memory of the plan; if another thread writes it meanwhile, the copy has old and new
    /// elements. A result is copied once, out of the memory of the plan, and is yours: it shares memory with no
    /// other array and no value of the model. `torch.from_dlpack` takes it without a copy. The first run on inputs of new
    /// shapes makes a plan for them.
    ///
    /// >>> model = autobwd.load("images.onnx")
    /// >>> x = np.zeros([2, 1, 8, 10], np.float32)
    /// >>> sorted(model.run({"x": x}, outputs=["scores", "features"]))
    /// ['features', 'scores']
    #[pyo3(signature = (inputs, outputs=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut given = vec![];
        for (name, value) in inputs {
            given.push((name.extract::<String>()?, value));
        }
        let signature = self.program.signature();
        let names: Vec<&str> = match &outputs {
            None => signature.outputs.iter().map(|output| output.name.as_str()).collect(),
            Some(names) => names.iter().map(String::as_str).collect(),
        };
        let fetches = outputs.as_ref().map_or_else(|| self.fetches(), |names| self.named_fetches(names));
        let results = self.results(py, &given, &fetches)?;
        arrays(py, names.into_iter().zip(results))
    }

    /// Runs the model on arrays in the order of its inputs, or by name; returns the output, or a tuple of several.
    ///
    /// >>> model = autobwd.load("images.onnx")
    /// >>> model(np.zeros([2, 1, 8, 10], np.float32)).shape
    /// (2, 3)
    #[pyo3(signature = (*inputs, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ProgramSignature { inputs: own, outputs } = self.program.signature();
        if inputs.len() > own.len() {
            let names = own.iter().map(|input| format!("`{}`", input.name)).collect::<Vec<_>>().join(", ");
            return refused(format!("{} inputs are given, but the model has {names}", inputs.len()));
        }
        let mut given: Vec<(String, Bound<'py, PyAny>)> =
            own.iter().map(|input| input.name.clone()).zip(inputs).collect();
        for (name, value) in named.into_iter().flatten() {
            given.push((name.extract()?, value));
        }
        let results = self.results(py, &given, &self.fetches())?.into_iter();
        let arrays = outputs.iter().zip(results).map(|(output, result)| to_numpy(py, &output.name, result));
        let mut arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        match arrays.len() {
            1 => Ok(arrays.remove(0)),
            _ => PyTuple::new(py, arrays)?.into_bound_py_any(py),
        }
    }

    /// A model with a loss as its only output: `cross_entropy` (targets are classes, int64), `next_token` (targets are the
    /// tokens), `binary_cross_entropy_with_logits`, `mse_loss` or `l1_loss`, between an output, by default the first one,
    /// and a new input, `target`.
    ///
    /// >>> autobwd.load("images.onnx").loss("cross_entropy", target="labels").inputs["labels"]
    /// int64 [N]
    #[pyo3(signature = (kind, *, output=None, target="target"))]
    fn loss(&self, py: Python<'_>, kind: &str, output: Option<&str>, target: &str) -> PyResult<PyModel> {
        let output = self.output_or_first(output)?;
        self.derived(py, with_loss(&self.program, kind, &output, target).map_err(raised)?)
    }

    /// A model that computes a loss, by default the first output, and its gradients with respect to variables, `wrt`, or to
    /// all parameters. The gradient of `w` is the output `w@GRAD`.
    ///
    /// >>> gradients = autobwd.load("images.onnx").loss("cross_entropy").grad(wrt=["head.bias"])
    /// >>> x, target = np.zeros([2, 1, 8, 10], np.float32), np.array([0, 1])
    /// >>> gradients.run({"x": x, "target": target})["head.bias@GRAD"].shape
    /// (3,)
    #[pyo3(signature = (loss=None, *, wrt=None))]
    fn grad(&self, py: Python<'_>, loss: Option<&str>, wrt: Option<Vec<String>>) -> PyResult<PyModel> {
        let loss = self.output_or_first(loss)?;
        let wrt: Option<Vec<&str>> = wrt.as_ref().map(|names| names.iter().map(String::as_str).collect());
        self.derived(py, with_gradients(&self.program, &loss, wrt.as_deref()).map_err(raised)?)
    }

    /// A model whose run is a training step: it computes a loss, by default the first output, and updates the values that
    /// this model shares, with dropout and batch normalisation in training mode. The state of the optimizer is new.
    ///
    /// `optimizer` is a name with a learning rate and options, such as `"adamw:0.001,decay=0.05,clip=global_norm(1)"`.
    /// Parameters whose names match a pattern of `freeze` are not trained. A step on inputs of these `shapes` takes at most
    /// `budget` bytes: what is cheapest is computed twice.
    ///
    /// >>> step = autobwd.load("images.onnx").loss("cross_entropy").train_step("adam:0.01", freeze=["first*"])
    /// >>> x, target = np.ones([2, 1, 8, 10], np.float32), np.array([0, 1])
    /// >>> losses = [float(step(x, target)) for _ in range(20)]
    /// >>> losses[-1] < losses[0]
    /// True
    #[pyo3(signature = (optimizer, loss=None, *, freeze=None, budget=None, shapes=None))]
    fn train_step(
        &self,
        py: Python<'_>,
        optimizer: &str,
        loss: Option<&str>,
        freeze: Option<Vec<String>>,
        budget: Option<Bytes>,
        shapes: Option<Shapes>,
    ) -> PyResult<PyModel> {
        let loss = self.output_or_first(loss)?;
        let optimizer: OptimizerSpec = optimizer.parse().map_err(raised)?;
        let frozen: Vec<&str> = freeze.iter().flatten().map(String::as_str).collect();
        let shapes: Vec<(String, Vec<usize>)> = shapes.unwrap_or_default().into_iter().collect();
        let bytes = budget.as_ref().map(Bytes::get).transpose()?;
        let derived = self.values.with(py, |values| {
            let mut model =
                Model { program: self.program.clone(), feeds: vec![], fetches: vec![], scope: Scope::new() };
            model.train(&frozen)?;
            let threads = values.executor.threads();
            let budget = bytes.map(|bytes| StepBudget { bytes, shapes: &shapes, threads });
            let derived = with_updates(&model.program, &loss, &optimizer, budget.as_ref())?;
            if let Some(startup) = &derived.startup {
                values.executor.run(startup, &mut values.scope, &[], &[])?;
            }
            Ok(derived)
        });
        self.derived(py, derived.map_err(raised)?)
    }

    /// A model that is only run, faster, with values of its own: its parameters are constants, and operators are merged.
    /// Results have other last bits.
    ///
    /// >>> autobwd.load("images.onnx").freeze()
    /// <autobwd.Model: x float32 [N, 1, H, W] -> scores float32 [N, 3]>
    fn freeze(&self, py: Python<'_>) -> PyResult<PyModel> {
        let frozen = self.values.with(py, |values| {
            let mut model = Model::for_inference(&self.program, &values.scope, &self.fetches())?;
            model.freeze()?;
            let executor = Executor::with_threads(values.executor.threads());
            Ok(PyModel::new(model.program, SharedValues::new(model.scope, executor)))
        });
        frozen.map_err(raised)
    }

    /// Tells how a gradient is computed, or why there is none.
    ///
    /// >>> gradients = autobwd.load("images.onnx").loss("cross_entropy").grad()
    /// >>> print(gradients.explain("head.bias@GRAD"))
    /// `head.bias@GRAD` is the gradient of ...
    fn explain(&self, variable: &str) -> PyResult<String> {
        explain(&self.program, variable).map_err(raised)
    }

    /// Plans a run on inputs of these shapes. Fails if it takes more than `budget` bytes, a number or a text such as
    /// `"64MB"`.
    ///
    /// >>> autobwd.load("images.onnx").plan(shapes={"x": (2, 1, 8, 10)}, budget="1KB")
    /// Traceback (most recent call last):
    ///     ...
    /// autobwd.Error: the budget of 1000 bytes is exceeded by ...
    #[pyo3(signature = (*, shapes=None, outputs=None, budget=None))]
    fn plan(
        &self,
        py: Python<'_>,
        shapes: Option<Shapes>,
        outputs: Option<Vec<String>>,
        budget: Option<Bytes>,
    ) -> PyResult<PyPlan> {
        let shapes: Vec<(String, Vec<usize>)> = shapes.unwrap_or_default().into_iter().collect();
        let budget = budget.as_ref().map(Bytes::get).transpose()?;
        let fetches = outputs.as_ref().map_or_else(|| self.fetches(), |names| self.named_fetches(names));
        let plan = self
            .values
            .with(py, |values| PyPlan::of(&values.executor, &self.program, &shapes, &fetches, budget));
        plan.map_err(raised)
    }

    /// Saves the model in the format of the extension: `.onnx` and `.pdmodel` files have program and values, `.safetensors`
    /// files values, and others the program: `.json`, `.txt`, `.html`, `.dot`, `.mmd`.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let is_values = path.extension().is_some_and(|extension| extension == "safetensors");
        let saved = self.values.with(py, |values| match is_values {
            true => {
                let kept = self.kept().filter_map(|name| Some((name, values.scope.find(name)?)));
                save_tensors(&path, kept)
            }
            false => values.with_model(&self.program, |model| save_model(model, &path.display().to_string())),
        });
        saved.map_err(raised)
    }

    /// The table of the parameters.
    fn summary(&self) -> String {
        ParameterSummary::of(&self.program).to_string()
    }

    /// The page of the program, for notebooks.
    fn _repr_html_(&self) -> PyResult<String> {
        self.program.to_inline_html().map_err(raised)
    }

    fn __repr__(&self) -> String {
        let all = |entries: &[SignatureEntry]| {
            let spec = |(name, variable): (&str, &str)| match self.meta(variable) {
                Some(meta) => format!("{name} {meta}"),
                None => name.to_string(),
            };
            pairs(entries).map(spec).collect::<Vec<_>>().join(", ")
        };
        let ProgramSignature { inputs, outputs } = self.program.signature();
        format!("<autobwd.Model: {} -> {}>", all(inputs), all(outputs))
    }
}
