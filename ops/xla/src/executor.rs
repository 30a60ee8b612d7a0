//! Runs programs on devices: lowers and compiles them when they are needed.

use std::{collections::VecDeque, fmt, slice, sync::Arc};

use autobwd::{Error, ErrorKind, Meta, OpInfoMap, Program, Result, Tensor};
use autobwd_core::__private::{Initialisers, internals::*};
use indexmap::IndexSet;

use crate::{
    CompiledProgram, DeviceScope, ShardedScope, Sharding,
    lower::{LowerRequest, lower},
    pjrt::{CompileOptions, Device, DeviceBuffer},
};

/// Default number of compiled programs that a [`DeviceExecutor`] caches.
const PROGRAMS: usize = 16;

/// Runs programs on the device of their scope. It is to a device what [`Executor`](autobwd::Executor) is to the host.
///
/// A program is lowered and compiled at its first run with feeds of these dtypes and shapes, which takes from a tenth of a
/// second to some seconds. Values of the scope stay on the device; feeds are copied to it, and fetches from it.
///
/// ```
/// use autobwd::{Builder, DType, Tensor};
/// use autobwd_ops::{Math, nn::Linear, optim::{Optimizer, Sgd}};
/// use autobwd_xla::{DeviceExecutor, DeviceScope, pjrt::Plugin};
///
/// let net = Builder::new();
/// let (x, y) = (net.input("x", DType::F32, &[-1, 2]), net.input("y", DType::F32, &[-1, 1]));
/// let loss = Linear::builder(&net, 2, 1).build().forward(&x).square_error(&y).mean();
/// Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
///
/// // The path of a plugin is in the environment variable AUTOBWD_PJRT_PLUGIN.
/// let Some(plugin) = Plugin::from_env()? else {
///     println!("AUTOBWD_PJRT_PLUGIN is not set");
///     return Ok(());
/// };
/// let device = plugin.client(&Default::default())?.device(0)?;
/// let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&device));
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let (program, loss) = (net.program()?, loss.name());
/// let x = Tensor::from_vec([4, 2], vec![0.0_f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
/// let y = Tensor::from_vec([4, 1], vec![0.0_f32, 1.0, 2.0, 3.0])?;
/// let mut losses = vec![];
/// for _ in 0..100 {
///     losses.push(executor.run(&program, &mut scope, &[("x", &x), ("y", &y)], &[&loss])?[0].item()?);
/// }
/// assert!(losses[99] < 0.01 * losses[0]);
/// println!("{:?}", scope.tensor("linear_0.w")?);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct DeviceExecutor {
    ops: Option<Arc<OpInfoMap>>,
    /// Maximum number of cached programs.
    cache_size: usize,
    /// Cached programs, most recently used first.
    programs: VecDeque<(ProgramKey, Arc<CompiledProgram>)>,
}

/// What a program is compiled for, but for the values of the scope.
#[derive(PartialEq)]
struct ProgramKey {
    program: u64,
    devices: Vec<Device>,
    sharding: Option<Sharding>,
    feeds: Vec<(String, Meta)>,
    fetches: Vec<String>,
}

/// The values of a program, on one or several devices.
#[derive(Clone, Copy)]
enum ScopeValues<'a> {
    /// One scope for each replica.
    Replicas(&'a [DeviceScope]),
    Sharded(&'a ShardedScope),
}

impl<'a> ScopeValues<'a> {
    fn scopes(self) -> &'a [DeviceScope] {
        match self {
            ScopeValues::Replicas(scopes) => scopes,
            ScopeValues::Sharded(scope) => &scope.scopes,
        }
    }

    fn sharding(self) -> Option<&'a Sharding> {
        match self {
            ScopeValues::Replicas(_) => None,
            ScopeValues::Sharded(scope) => Some(scope.sharding()),
        }
    }

    /// Dtype and shape of the value of that name, as a whole.
    fn meta(self, name: &str) -> Option<Meta> {
        match self {
            ScopeValues::Replicas(scopes) => scopes.first()?.get(name).ok().map(DeviceBuffer::meta),
            ScopeValues::Sharded(scope) => scope.meta(name),
        }
    }
}

impl ProgramKey {
    fn new(
        program: &Program,
        values: ScopeValues<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> ProgramKey {
        ProgramKey {
            program: program.stamp(),
            devices: values.scopes().iter().map(|scope| scope.device().clone()).collect(),
            sharding: values.sharding().cloned(),
            feeds: feeds.iter().map(|(name, meta)| (name.to_string(), meta.clone())).collect(),
            fetches: fetches.iter().map(ToString::to_string).collect(),
        }
    }

    fn is(
        &self,
        program: &Program,
        values: ScopeValues<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> bool {
        let same_feed = |((name, meta), (n, m)): (&(String, Meta), &(&str, Meta))| name == n && meta == m;
        self.program == program.stamp()
            && self.devices.iter().eq(values.scopes().iter().map(DeviceScope::device))
            && self.sharding.as_ref() == values.sharding()
            && self.feeds.len() == feeds.len()
            && self.feeds.iter().zip(feeds).all(same_feed)
            && self.fetches == fetches
    }
}

impl Default for DeviceExecutor {
    fn default() -> DeviceExecutor {
        DeviceExecutor::new()
    }
}

impl fmt::Debug for DeviceExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceExecutor").field("programs", &self.programs.len()).finish_non_exhaustive()
    }
}

impl DeviceExecutor {
    /// An executor for all devices.
    pub fn new() -> DeviceExecutor {
        DeviceExecutor { ops: None, cache_size: PROGRAMS, programs: VecDeque::new() }
    }

    /// Uses these operators instead of those linked into this binary.
    #[must_use]
    pub fn with_ops(self, ops: OpInfoMap) -> DeviceExecutor {
        DeviceExecutor { ops: Some(Arc::new(ops)), programs: VecDeque::new(), ..self }
    }

    /// Sets the number of compiled programs that are kept, at least one: 16 by default. The most recently used ones are
    /// kept.
    #[must_use]
    pub fn cache_size(mut self, programs: usize) -> DeviceExecutor {
        self.cache_size = programs.max(1);
        self.programs.truncate(self.cache_size);
        self
    }

    /// Runs a program once and returns the fetches. A variable that the program computes may be fed, as with
    /// [`Executor::run`](autobwd::Executor::run).
    ///
    /// # Errors
    /// The errors of [`prepare`](DeviceExecutor::prepare) and [`CompiledProgram::run`].
    pub fn run(
        &mut self,
        program: &impl AsRef<Program>,
        scope: &mut DeviceScope,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let mut fetched = self.run_replicas(program, slice::from_mut(scope), &[feeds], fetches)?;
        Ok(fetched.pop().unwrap_or_default())
    }

    /// Runs a program as replicas, one on the device of each scope, with a list of feeds for each; feeds of one name have
    /// one dtype and shape. Returns a list of fetches for each. Collective operators, as those of
    /// [`data_parallel`](autobwd::parallel::data_parallel), exchange data among the replicas.
    ///
    /// # Errors
    /// As [`run`](DeviceExecutor::run); scopes whose devices are of different clients.
    pub fn run_replicas(
        &mut self,
        program: &impl AsRef<Program>,
        scopes: &mut [DeviceScope],
        feeds: &[&[(&str, &Tensor)]],
        fetches: &[&str],
    ) -> Result<Vec<Vec<Tensor>>> {
        let first = feeds.first().copied().unwrap_or_default();
        let metas: Vec<_> = first.iter().map(|(name, tensor)| (*name, tensor.meta())).collect();
        self.prepare_replicas(program, scopes, &metas, fetches)?.run_replicas(scopes, feeds, fetches)
    }

    /// Runs a program on the devices of a scope, among which tensors are divided: once, with whole feeds and fetches.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Scope, Tensor};
    /// use autobwd_ops::{Math, nn::Linear};
    /// use autobwd_xla::{DeviceExecutor, ShardedScope, Sharding, pjrt::{ClientOptions, Plugin}};
    ///
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 4]);
    /// let h = Linear::builder(&net, 4, 8).name("hidden").build().forward(&x).relu();
    /// let y = Linear::builder(&net, 8, 2).name("output").build().forward(&h);
    ///
    /// let Some(plugin) = Plugin::from_env()? else {
    ///     println!("AUTOBWD_PJRT_PLUGIN is not set");
    ///     return Ok(());
    /// };
    /// // The plugin for the CPU divides it into virtual devices.
    /// let devices = plugin.client(&ClientOptions::new().set("cpu_device_count", 2_i64))?.devices();
    /// // Each device has half of the columns of the first weight, and the rows of the second that belong to them.
    /// let sharding = Sharding::new().split("hidden.w", 1).split("hidden.b", 0).split("output.w", 0);
    /// let (mut executor, mut scope) = (DeviceExecutor::new(), ShardedScope::new(&devices, sharding));
    /// executor.run_sharded(&net.startup().program()?, &mut scope, &[], &[])?;
    /// assert_eq!(scope.parts()[0].get("hidden.w")?.dims(), [4, 4]);
    /// let x = Tensor::from_vec([1, 4], vec![1.0_f32; 4])?;
    /// let y = executor.run_sharded(&net.program()?, &mut scope, &[("x", &x)], &[&y.name()])?;
    /// assert_eq!(y[0].dims(), [1, 2]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](DeviceExecutor::run); dimensions that cannot be divided.
    pub fn run_sharded(
        &mut self,
        program: &impl AsRef<Program>,
        scope: &mut ShardedScope,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let metas: Vec<_> = feeds.iter().map(|(name, tensor)| (*name, tensor.meta())).collect();
        let program = self.prepare_values(program.as_ref(), ScopeValues::Sharded(scope), &metas, fetches)?;
        let divided: Result<Vec<Vec<Tensor>>> =
            feeds.iter().map(|(name, tensor)| scope.divide(name, tensor)).collect();
        let divided = divided?;
        let part = |device: usize| -> Vec<(&str, &Tensor)> {
            feeds.iter().zip(&divided).map(|((name, _), parts)| (*name, &parts[device])).collect()
        };
        let parts: Vec<_> = (0..scope.scopes.len()).map(part).collect();
        let parts: Vec<&[(&str, &Tensor)]> = parts.iter().map(Vec::as_slice).collect();
        // Every device has all fetches.
        let fetched = program.run_replicas(&mut scope.scopes, &parts, fetches)?.swap_remove(0);
        program.written().for_each(|(name, axis)| scope.set_axis(name, axis));
        Ok(fetched)
    }

    /// Lowers and compiles a program for feeds of these dtypes and shapes and for the values of the scope; takes it from the
    /// cache if it is there. [`CompiledProgram::run_on_device`] runs it without copies between host and device.
    ///
    /// # Errors
    /// Those of [`lower`]: operators without a form in StableHLO, for one. Failures of the device.
    ///
    /// [`lower`]: crate::lower::lower()
    pub fn prepare(
        &mut self,
        program: &impl AsRef<Program>,
        scope: &DeviceScope,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Arc<CompiledProgram>> {
        self.prepare_replicas(program, slice::from_ref(scope), feeds, fetches)
    }

    /// As [`prepare`](DeviceExecutor::prepare), with a replica on the device of each scope. All scopes have values of the
    /// same names, dtypes and shapes.
    ///
    /// # Errors
    /// As [`prepare`](DeviceExecutor::prepare); no scope; scopes on devices of different clients.
    pub fn prepare_replicas(
        &mut self,
        program: &impl AsRef<Program>,
        scopes: &[DeviceScope],
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Arc<CompiledProgram>> {
        self.prepare_values(program.as_ref(), ScopeValues::Replicas(scopes), feeds, fetches)
    }

    fn prepare_values(
        &mut self,
        program: &Program,
        values: ScopeValues<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Arc<CompiledProgram>> {
        let first = values
            .scopes()
            .first()
            .ok_or_else(|| Error::new(ErrorKind::Device, "a program runs with at least one scope"))?;
        let known = self.programs.iter().position(|(key, compiled)| {
            key.is(program, values, feeds, fetches) && compiled.check_states(first).is_ok()
        });
        let entry = match known.and_then(|i| self.programs.remove(i)) {
            Some(entry) => entry,
            None => {
                let key = ProgramKey::new(program, values, feeds, fetches);
                let compiled = self.compile(program, &key.devices, values, feeds, fetches)?;
                (key, Arc::new(compiled))
            }
        };
        let compiled = entry.1.clone();
        self.programs.truncate(self.cache_size - 1);
        self.programs.push_front(entry);
        Ok(compiled)
    }

    fn compile(
        &self,
        program: &Program,
        devices: &[Device],
        values: ScopeValues<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<CompiledProgram> {
        let ops = match &self.ops {
            Some(ops) => ops,
            None => OpInfoMap::linked()?,
        };
        let known = |name: &str| values.meta(name);
        // A value that is fetched twice is one result.
        let fetches: IndexSet<&str> = fetches.iter().copied().collect();
        let fetches: Vec<&str> = fetches.into_iter().collect();
        let request = LowerRequest::new(feeds, &known, &fetches);
        let (request, options) = match values.sharding() {
            None => (request.replicas(devices.len()), CompileOptions::new(devices)),
            Some(sharding) => {
                (request.sharding(sharding, devices.len()), CompileOptions::partitions(devices))
            }
        };
        let client = devices.first().ok_or_else(|| Error::internal("a program without devices"))?.client();
        let mut compiled = lower(program, ops, &request)?.compile_with(client, &options)?;
        compiled.initialisers = Initialisers::of(program);
        Ok(compiled)
    }
}
