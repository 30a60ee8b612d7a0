//! Plans of runs.

use autobwd::{
    Executor, Program, Result, Scope,
    exec::{MemoryUse, PlanReport, PlannedRun},
};
use pyo3::{
    Bound, PyResult, Python, pyclass, pymethods,
    types::{PyDict, PyDictMethods},
};

/// What a run does, and its memory, before it runs; as text, a table.
///
/// >>> plan = autobwd.load("images.onnx").plan(shapes={"x": (2, 1, 8, 10)})
/// >>> sum(plan.memory.values()) == plan.total_bytes
/// True
#[pyclass(frozen, module = "autobwd", name = "Plan")]
pub(crate) struct PyPlan {
    report: PlanReport,
    memory: MemoryUse,
}

impl PyPlan {
    /// Plans a run on data of these shapes.
    pub(crate) fn of(
        executor: &Executor,
        program: &Program,
        shapes: &[(String, Vec<usize>)],
        fetches: &[&str],
        budget: Option<usize>,
    ) -> Result<PyPlan> {
        let feeds = autobwd_cli::feed_metas(program, shapes)?;
        let mut scope = Scope::new();
        scope.add_zeros(program)?;
        let report = executor.plan(program, &scope, &feeds, fetches)?;
        let memory = MemoryUse::planned(executor, &[PlannedRun { program, feeds: &feeds, fetches }])?;
        if let Some(bytes) = budget {
            memory.require_within(bytes)?;
        }
        Ok(PyPlan { report, memory })
    }
}

#[pymethods]
impl PyPlan {
    /// Bytes by what takes them.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let MemoryUse { parameters, optimizer_state, other_kept, arena, scratch, copies, .. } = self.memory;
        let parts = PyDict::new(py);
        for (part, bytes) in [
            ("parameters", parameters),
            ("optimizer_state", optimizer_state),
            ("other_kept", other_kept),
            ("arena", arena),
            ("scratch", scratch),
            ("copies", copies),
        ] {
            parts.set_item(part, bytes)?;
        }
        Ok(parts)
    }

    /// The sum of `memory`.
    #[getter]
    fn total_bytes(&self) -> usize {
        self.memory.total()
    }

    /// A drawing of the buffers over time.
    fn to_svg(&self) -> String {
        self.report.to_svg()
    }

    fn __str__(&self) -> String {
        format!("{}{}", self.report, self.memory)
    }

    fn __repr__(&self) -> String {
        let (instructions, bytes) = (self.report.instructions().len(), self.memory.total());
        format!("<autobwd.Plan: {instructions} instructions, {bytes} bytes>")
    }
}
