//! The scope: named values that outlive a run.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use indexmap::{IndexMap, IndexSet};

use crate::load_report::{LoadReport, MismatchedValue, converted};
use crate::optimizer_state::{is_named_as_state, optimizer_state};
use autobwd_core::{
    __private::{Initialisers, Place, did_you_mean, internals::*},
    BlockId, Element, Error, ErrorKind, Meta, OpDesc, Program, Result, Tensor, Var, VarDesc,
    tensor::{load_tensors, save_tensors},
};

/// The values kept between runs: parameters, optimizer states, statistics.
///
/// ```
/// use autobwd::{Scope, Tensor};
/// let mut scope = Scope::new();
/// scope.set("w", Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
/// scope.slice_mut::<f32>("w")?[0] = 3.0;
/// assert_eq!(scope.get("w")?.slice::<f32>()?, [3.0, 2.0]);
/// assert_eq!(scope.get("v").unwrap_err().to_string(), "the scope has no `v`; did you mean `w`?");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct Scope {
    values: IndexMap<String, Tensor>,
    /// The operators of startup programs that initialised values.
    initialisers: Initialisers,
    /// New for every scope, and whenever the memory of a value is replaced, because sessions hold addresses.
    stamp: u64,
}

fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Default for Scope {
    fn default() -> Scope {
        Scope::new()
    }
}

impl Clone for Scope {
    fn clone(&self) -> Scope {
        Scope { values: self.values.clone(), initialisers: self.initialisers.clone(), stamp: next_stamp() }
    }
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Scope {
        Scope { values: IndexMap::new(), initialisers: Initialisers::default(), stamp: next_stamp() }
    }

    /// The value of that name.
    ///
    /// # Errors
    /// An unknown name; similar names are suggested.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.find(name).ok_or_else(|| self.unknown(name))
    }

    /// The value of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.values.get(name)
    }

    fn unknown(&self, name: &str) -> Error {
        let hint = did_you_mean(name, self.values.keys().map(String::as_str));
        Error::new(ErrorKind::NoValue, format!("the scope has no `{name}`{hint}"))
    }

    /// The elements of a value, mutably.
    ///
    /// # Errors
    /// An unknown name; another dtype.
    pub fn slice_mut<T: Element>(&mut self, name: &str) -> Result<&mut [T]> {
        if !self.values.contains_key(name) {
            return Err(self.unknown(name));
        }
        // The look-up above succeeded; `slice_mut` rejects another dtype.
        self.values.get_mut(name).map_or(Ok(&mut [][..]), |t| t.slice_mut())
    }

    /// Adds zeros for the values that a program keeps, where their shapes are declared and the scope has no value: to plan
    /// runs without initial values.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn add_zeros(&mut self, program: &impl AsRef<Program>) -> Result<()> {
        let program = program.as_ref();
        for (var, desc) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = program.name(*var);
            if let (Some(dims), None) = (desc.dims.known(), self.find(name)) {
                self.set(name, Tensor::zeros(desc.dtype, &dims)?);
            }
        }
        Ok(())
    }

    /// Sets a value. Sessions stay valid if dtype and shape are unchanged.
    pub fn set(&mut self, name: &str, value: Tensor) {
        self.initialisers.remove(name);
        match self.values.get_mut(name) {
            Some(old) if old.dtype() == value.dtype() && old.dims() == value.dims() => {
                old.bytes_mut().copy_from_slice(value.bytes());
            }
            Some(old) => {
                *old = value;
                self.stamp = next_stamp();
            }
            None => {
                self.values.insert(name.into(), value);
            }
        }
    }

    /// Names and values, in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Saves all values as a safetensors file, atomically.
    ///
    /// # Errors
    /// The file system's, naming the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save_tensors(path, self.iter())
    }

    /// As [`save`](Scope::save), without the state of the program's optimizers: learning rates, moments and the like,
    /// which a model for inference does not need. A [`Checkpoint`](crate::Checkpoint) has all values. What a rate is
    /// computed of counts up to parameters, gradients, data and values computed of them.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, optim::{Adam, Optimizer}};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[3], |w| Init::Normal(0.0, 1.0).emit(w, 7));
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("weights.safetensors");
    /// Adam::new(0.1).minimize(&w.square().mean())?.complete()?;
    /// let mut scope = Scope::new();
    /// Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// assert_eq!(scope.len(), 6);
    /// scope.save_without_optimizer(&path, &net.program()?)?;
    /// let mut weights = Scope::new();
    /// weights.load(&path)?;
    /// assert_eq!(weights.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["w"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`save`](Scope::save).
    pub fn save_without_optimizer(
        &self,
        path: impl AsRef<Path>,
        program: &impl AsRef<Program>,
    ) -> Result<()> {
        let program = program.as_ref();
        let states = optimizer_state(program);
        let is_state = |name: &str| program.find(name).is_some_and(|var| states.contains(&var));
        save_tensors(path, self.iter().filter(|(name, _)| !is_state(name)))
    }

    /// Sets the values of a safetensors file, all or none.
    ///
    /// # Errors
    /// As [`load_tensors`](autobwd_core::tensor::load_tensors).
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        for (name, value) in load_tensors(path)? {
            self.set(&name, value);
        }
        Ok(())
    }

    /// Sets those values whose names begin with `prefix` (all of them if it is empty) from a safetensors file, as far as
    /// they fit, and reports which were loaded and which were not. Numbers of float16, bfloat16 and float32 are converted
    /// into each other. Other values of the file are ignored.
    ///
    /// The scope holds the values to be set already: run the start-up program first.
    ///
    /// ```
    /// use autobwd::{Scope, Tensor};
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights.safetensors");
    /// let mut trained = Scope::new();
    /// trained.set("encoder.w", Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
    /// trained.set("head.w", Tensor::from_vec([3], vec![0.0_f32; 3])?);
    /// trained.save(&path)?;
    ///
    /// let mut scope = Scope::new();
    /// scope.set("encoder.w", Tensor::from_vec([2], vec![0.0_f32; 2])?);
    /// scope.set("head.w", Tensor::from_vec([5], vec![0.0_f32; 5])?);
    /// let report = scope.load_matching(&path, "encoder.")?.complete()?;
    /// assert_eq!(report.loaded, ["encoder.w"]);
    /// assert_eq!(scope.get("encoder.w")?.slice::<f32>()?, [1.0, 2.0]);
    ///
    /// let report = scope.load_matching(&path, "")?;
    /// assert_eq!(report.to_string(), "1 loaded\n1 mismatched: `head.w` is float32 [5], float32 [3] in the file");
    /// assert!(report.complete().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`load_tensors`](autobwd_core::tensor::load_tensors).
    pub fn load_matching(&mut self, path: impl AsRef<Path>, prefix: &str) -> Result<LoadReport> {
        self.load_renamed(path, prefix, prefix)
    }

    /// As [`load_matching`](Scope::load_matching), for values whose names begin with `from` in the file and with `to` in
    /// the scope: `bert.layer.w` becomes `encoder.layer.w` with `"bert."` and `"encoder."`.
    ///
    /// # Errors
    /// As [`load_matching`](Scope::load_matching).
    pub fn load_renamed(&mut self, path: impl AsRef<Path>, from: &str, to: &str) -> Result<LoadReport> {
        let mut report = LoadReport::default();
        let mut missing: IndexSet<String> =
            self.values.keys().filter(|name| name.starts_with(to)).cloned().collect();
        let values = load_tensors(path)?;
        let names: IndexSet<String> = values.iter().map(|(name, _)| name.clone()).collect();
        for (name, value) in values {
            let Some(rest) = name.strip_prefix(from) else { continue };
            let own = format!("{to}{rest}");
            missing.shift_remove(&own);
            match self.values.get(&own) {
                None if is_named_as_state(&name, |name| names.contains(name)) => {
                    report.optimizer_state.push(own)
                }
                None => report.unexpected.push(own),
                Some(old) if old.dtype() == value.dtype() && old.dims() == value.dims() => {
                    self.set(&own, value);
                    report.loaded.push(own);
                }
                Some(old) => {
                    let (expected, stored) = (old.meta(), value.meta());
                    let converted = converted(&value, &expected)?;
                    let difference = MismatchedValue { name: own.clone(), expected, stored };
                    match converted {
                        Some(converted) => {
                            self.set(&own, converted);
                            report.loaded.push(own);
                            report.converted.push(difference);
                        }
                        None => report.mismatched.push(difference),
                    }
                }
            }
        }
        report.missing = missing.into_iter().collect();
        Ok(report)
    }

    /// Converts the values that a program declares with other floating point numbers: float16, bfloat16 and float32 into
    /// each other, to the nearest, ties to even. Returns what was converted.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Scope, Tensor, tensor::bf16};
    /// let net = Builder::new();
    /// net.persistable("w", DType::F32, &[2], |w| w.clone());
    /// let mut scope = Scope::new();
    /// scope.set("w", Tensor::from_vec([2], vec![bf16::from_f32(0.5); 2])?);
    /// let converted = scope.convert_to(&*net.program()?)?;
    /// assert_eq!(converted[0].to_string(), "`w` is float32 [2], bfloat16 [2] in the file");
    /// assert_eq!(scope.get("w")?.slice::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Not enough memory.
    pub fn convert_to(&mut self, program: &impl AsRef<Program>) -> Result<Vec<MismatchedValue>> {
        let program = program.as_ref();
        let (mut changed, mut report) = (vec![], vec![]);
        for (name, value) in self.iter() {
            let declared = program.find(name).and_then(|var| program.root().vars.get(&var));
            let Some(desc) = declared.filter(|desc| desc.dtype != value.dtype()) else { continue };
            let mut expected = value.meta();
            expected.dtype = desc.dtype;
            if let Some(value) = converted(value, &expected)? {
                changed.push((name.to_string(), value));
                let stored = self.meta(name).unwrap_or_else(|| expected.clone());
                report.push(MismatchedValue { name: name.into(), expected, stored });
            }
        }
        changed.into_iter().for_each(|(name, value)| self.set(&name, value));
        Ok(report)
    }

    /// The part of a startup program that initialises the variables which the scope does not hold. The others keep
    /// their values: a second stage of training starts with the weights of the first. If an operator initialises both,
    /// the values that are there stay.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, optim::{Adam, Optimizer, Sgd}};
    /// let model = |net: &Builder| net.parameter("w", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0)).square().mean();
    /// let (first, second) = (Builder::new(), Builder::new());
    /// Sgd { rate: 0.1 }.minimize(&model(&first))?.complete()?;
    /// Adam::new(0.01).name("second").minimize(&model(&second))?.complete()?;
    ///
    /// let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// executor.run(&first.startup().program()?, &mut scope, &[], &[])?;
    /// executor.run(&first.program()?, &mut scope, &[], &[])?;
    /// executor.run(&scope.missing_only(&second.startup().program()?)?, &mut scope, &[], &[])?;
    /// assert_eq!(scope.get("w")?.slice::<f32>()?, [0.8]);
    /// assert_eq!(scope.get("second.learning_rate_0")?.slice::<f32>()?, [0.01]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// A value of another dtype or shape than the program gives it; a value that another startup program initialised
    /// by another operator, as with two optimizers of one name, but for parameters; an operator with a sub-block that
    /// initialises both a value that is there and one that is missing.
    pub fn missing_only(&self, startup: &impl AsRef<Program>) -> Result<Program> {
        let startup = startup.as_ref();
        let root = startup.root();
        for (var, desc) in root.vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = startup.name(*var);
            if let Some(meta) = self.meta(name).filter(|meta| !meta.agrees(&desc.meta())) {
                let text =
                    format!("`{name}` is {meta} in the scope, and {} in the startup program", desc.meta());
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        self.initialisers.check_shared(&Initialisers::of_startup(startup), startup)?;
        let is_kept = |var: Var| root.vars.get(&var).is_some_and(|desc| desc.persistable);
        let holds = |var: Var| is_kept(var) && self.values.contains_key(startup.name(var));
        let (mut missing, mut ops) = (startup.clone(), vec![]);
        missing.mark_startup();
        for (index, op) in root.ops.iter().enumerate() {
            match op.writes().find(|var| holds(*var)) {
                None => ops.push(op.clone()),
                Some(_) if op.writes().all(holds) => {}
                Some(held) if op.attrs.blocks().next().is_some() => {
                    let name = startup.name(held);
                    let text = format!(
                        "the scope has `{name}`, and lacks others that the same operator initialises: initialise them \
                         by separate operators"
                    );
                    let at = || startup.describe_op(BlockId::ROOT, index, op);
                    return Err(Error::new(ErrorKind::Program, text).at_op(at));
                }
                Some(_) => ops.push(with_spare_outputs(op, &mut missing, holds)),
            }
        }
        missing.root_mut().ops = ops;
        Ok(missing)
    }

    /// Removes all values but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        for name in self.values.keys().skip(len) {
            self.initialisers.remove(name);
        }
        self.values.truncate(len);
    }

    /// The operators that initialised values.
    pub(super) fn initialisers(&self) -> &Initialisers {
        &self.initialisers
    }

    /// Records that these operators have initialised values.
    pub(super) fn record(&mut self, initialisers: &Initialisers) {
        self.initialisers.record(initialisers);
    }

    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    #[doc(hidden)]
    pub fn meta(&self, name: &str) -> Option<Meta> {
        self.values.get(name).map(Tensor::meta)
    }

    /// Moves all values to memory that sessions can read in place.
    pub(super) fn align(&mut self) -> Result<()> {
        self.values.values_mut().try_for_each(|tensor| tensor.memory().map(drop))
    }

    /// The memory of a value, allocated if necessary.
    fn place(&mut self, name: &str, meta: &Meta) -> Result<Place> {
        if !self.values.contains_key(name) {
            let dims = meta
                .dims
                .known()
                .ok_or_else(|| Error::internal("a value of the scope with unknown shape"))?;
            self.set(name, Tensor::zeros(meta.dtype, &dims)?);
        }
        if let Some(tensor) = self.values.get_mut(name) {
            tensor.memory()?;
        }
        self.aligned_place(name, meta)
    }

    /// The memory of a value after [`align`](Scope::align).
    fn aligned_place(&self, name: &str, meta: &Meta) -> Result<Place> {
        let tensor = self.get(name)?;
        if tensor.meta().bytes() != meta.bytes() {
            return Err(Error::internal(format!("`{name}` is in the scope with another size")));
        }
        // SAFETY: a session runs only with the scope that it is bound to, unchanged in its set of values (its stamp
        // says so). It borrows the scope mutably, or the scope is shared and no session writes it.
        #[allow(unsafe_code)]
        unsafe {
            tensor.shared_memory()?.place(0, tensor.bytes().len())
        }
    }
}

/// The operator with other outputs for the variables that are held.
fn with_spare_outputs(op: &OpDesc, program: &mut Program, holds: impl Fn(Var) -> bool) -> OpDesc {
    let mut op = op.clone();
    for var in op.outputs.args_mut().filter(|var| holds(**var)) {
        let spare = program.fresh("spare");
        let desc = program.root().vars.get(var).map(|desc| VarDesc::new(desc.dtype, desc.dims.clone()));
        program.root_mut().vars.extend(desc.map(|desc| (spare, desc)));
        *var = spare;
    }
    op
}

/// The scope of a session.
pub(crate) enum BoundScope<'a> {
    /// Runs borrow the scope mutably and may write it.
    Exclusive(&'a mut Scope),
    /// Sessions of several threads read the scope, and none writes it.
    Shared(&'a Scope),
}

impl BoundScope<'_> {
    pub(crate) fn scope(&self) -> &Scope {
        match self {
            BoundScope::Exclusive(scope) => scope,
            BoundScope::Shared(scope) => scope,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, BoundScope::Shared(_))
    }

    /// Removes all values but the first `len`; a shared scope has no others.
    pub(crate) fn truncate(&mut self, len: usize) {
        if let BoundScope::Exclusive(scope) = self {
            scope.truncate(len);
        }
    }

    /// The memory of a value. A shared scope has none to write.
    pub(crate) fn place(&mut self, name: &str, meta: &Meta, written: bool) -> Result<Place> {
        match self {
            BoundScope::Exclusive(scope) => scope.place(name, meta),
            BoundScope::Shared(_) if written => Err(write_to_shared(name)),
            BoundScope::Shared(scope) => scope.aligned_place(name, meta),
        }
    }
}

pub(crate) fn write_to_shared(name: &str) -> Error {
    Error::internal(format!("`{name}` of a shared scope would be written"))
}
