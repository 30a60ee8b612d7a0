//! Compiled programs.
//!
//! An argument passed by value is donated; one passed by reference is marked as not donatable. So a buffer that can be
//! named has its value.

#![allow(unsafe_code)]

use std::{fmt, ptr::null_mut};

use autobwd::{DType, Error, ErrorKind, Meta, Result};

use super::{
    Client, CompileOptions, Device, DeviceBuffer, Parameter,
    buffer::dtype_of_code,
    signature,
    sys::{
        ClientCompile, ExecutableDeserializeAndLoad, ExecutableDestroy, ExecutableGetCompiledMemoryStats,
        ExecutableNumOutputs, ExecutableOutputDimensions, ExecutableOutputElementTypes, ExecutableSerialize,
        ExecuteOptions, LoadedExecutableAddressableDevices, LoadedExecutableDestroy, LoadedExecutableExecute,
        LoadedExecutableGetExecutable, Program, RawBuffer, RawExecutable, RawLoadedExecutable,
    },
    table::{Handle, array},
};

/// A compiled program, loaded on one or several devices.
///
/// Several threads may run it at the same time.
pub struct Executable {
    /// Before `loaded`: fields are dropped in this order.
    unloaded: Unloaded,
    loaded: Loaded,
    parameters: Vec<Parameter>,
    results: Vec<(DType, Vec<usize>)>,
    devices: Vec<Device>,
}

/// An argument of a run.
#[derive(Debug)]
pub enum Input<'a> {
    /// The program reads the buffer. If it may reuse the argument's memory, it copies it.
    Borrowed(&'a DeviceBuffer),
    /// The program may reuse the memory. The buffer is gone after the run.
    Donated(DeviceBuffer),
}

impl<'a> From<&'a DeviceBuffer> for Input<'a> {
    fn from(buffer: &'a DeviceBuffer) -> Input<'a> {
        Input::Borrowed(buffer)
    }
}
impl From<DeviceBuffer> for Input<'_> {
    fn from(buffer: DeviceBuffer) -> Self {
        Input::Donated(buffer)
    }
}
impl Input<'_> {
    fn buffer(&self) -> &DeviceBuffer {
        match self {
            Input::Borrowed(buffer) => buffer,
            Input::Donated(buffer) => buffer,
        }
    }
}

/// The memory that a program takes on a device, in bytes, as its compiler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramMemory {
    /// Machine code.
    pub code: u64,
    /// Arguments.
    pub arguments: u64,
    /// Results, including those in the memory of donated arguments.
    pub results: u64,
    /// Results in the memory of donated arguments.
    pub aliased: u64,
    /// Temporaries.
    pub temporaries: u64,
    /// The most at any time; 0 if the compiler does not say.
    pub peak: u64,
}

struct Loaded(Client, Handle<RawLoadedExecutable>);
struct Unloaded(Client, Handle<RawExecutable>);

impl Drop for Loaded {
    fn drop(&mut self) {
        let mut destroy = LoadedExecutableDestroy { executable: self.1.raw(), ..Default::default() };
        // SAFETY: this owns the executable; runs that have begun keep what they need.
        let _ = unsafe { self.0.table().call(&mut destroy) };
    }
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        let mut destroy = ExecutableDestroy { executable: self.1.raw(), ..Default::default() };
        // SAFETY: this owns the executable.
        let _ = unsafe { self.0.table().call(&mut destroy) };
    }
}

impl Executable {
    pub(super) fn compile(client: &Client, text: &str, options: &CompileOptions) -> Result<Executable> {
        let devices = options.devices();
        if let Some(device) = devices.iter().find(|device| !device.client().is_same(client)) {
            let message = format!("cannot compile for {device}: it is a device of another client");
            return Err(Error::new(ErrorKind::Device, message));
        }
        if let Some(i) = (1..devices.len()).find(|i| devices[..*i].contains(&devices[*i])) {
            let message =
                format!("cannot compile for {} twice: each replica needs its own device", devices[i]);
            return Err(Error::new(ErrorKind::Device, message));
        }
        let options = options.encode()?;
        let format = "mlir";
        let program = Program {
            code: text.as_ptr(),
            code_size: text.len(),
            format: format.as_ptr(),
            format_size: format.len(),
            ..Default::default()
        };
        let mut compile = ClientCompile {
            client: client.handle().raw(),
            program: &program,
            compile_options: options.as_ptr(),
            compile_options_size: options.len(),
            ..Default::default()
        };
        // SAFETY: the client is alive; text and options are readable during the call.
        unsafe { client.table().call(&mut compile) }
            .map_err(|e| e.error_of(ErrorKind::Program, "XLA cannot compile the program"))?;
        let loaded = Loaded(client.clone(), Handle::new(compile.executable, "executable")?);
        Executable::new(loaded, signature::parameters(text)?)
    }

    /// Loads what [`serialize`](Executable::serialize) has returned.
    pub(super) fn deserialize(
        client: &Client,
        bytes: &[u8],
        parameters: Vec<Parameter>,
    ) -> Result<Executable> {
        let mut load = ExecutableDeserializeAndLoad {
            client: client.handle().raw(),
            serialized_executable: bytes.as_ptr(),
            serialized_executable_size: bytes.len(),
            ..Default::default()
        };
        // SAFETY: the client is alive; the bytes are readable during the call.
        unsafe { client.table().call(&mut load) }.map_err(|e| e.error("cannot load the executable"))?;
        let loaded = Loaded(client.clone(), Handle::new(load.loaded_executable, "executable")?);
        Executable::new(loaded, parameters)
    }

    fn new(loaded: Loaded, parameters: Vec<Parameter>) -> Result<Executable> {
        let (client, raw) = (loaded.0.clone(), loaded.1.raw());
        let table = client.table();
        let mut unloaded = LoadedExecutableGetExecutable { loaded_executable: raw, ..Default::default() };
        // SAFETY: the executable is alive.
        unsafe { table.call(&mut unloaded) }.map_err(|e| e.error("cannot describe the executable"))?;
        let unloaded = Unloaded(client.clone(), Handle::new(unloaded.executable, "executable")?);
        let mut given = LoadedExecutableAddressableDevices { executable: raw, ..Default::default() };
        // SAFETY: the executable is alive, and keeps the array.
        let devices = unsafe {
            table.call(&mut given).map_err(|e| e.error("cannot list the devices of the executable"))?;
            array(given.addressable_devices, given.num_addressable_devices)
        };
        let devices: Option<Vec<Device>> = devices.iter().map(|device| client.find(*device)).collect();
        let unknown = || Error::new(ErrorKind::Device, "the executable is loaded on unknown devices");
        let devices = devices.filter(|devices| !devices.is_empty()).ok_or_else(unknown)?;
        let results = unloaded.results()?;
        Ok(Executable { unloaded, loaded, parameters, results, devices })
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.loaded.0
    }

    /// The devices, one for each replica or partition.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The arguments.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Dtypes and shapes of the results.
    pub fn results(&self) -> impl ExactSizeIterator<Item = Meta> {
        self.results.iter().map(|(dtype, dims)| Meta::new(*dtype, &**dims))
    }

    /// Starts the program on its device and returns its results, which may still be computed.
    ///
    /// A buffer that is passed by value is donated: the program may write a result in its memory, if its text says so
    /// (`tf.aliasing_output`, `jax.buffer_donor`). A buffer that is passed by reference is only read.
    ///
    /// # Errors
    /// A wrong number of arguments; an argument of another dtype or shape, or on another device; a program of several
    /// replicas; failures of the plugin. Failures of the computation itself are errors of the results.
    pub fn run<'a, I>(&self, inputs: I) -> Result<Vec<DeviceBuffer>>
    where
        I: IntoIterator<Item: Into<Input<'a>>>,
    {
        let inputs: Vec<Input<'a>> = inputs.into_iter().map(Into::into).collect();
        Ok(self.run_replicas(vec![inputs])?.pop().unwrap_or_default())
    }

    /// Starts the program on all of its devices: a list of arguments and a list of results for each.
    ///
    /// An argument is donated if every replica donates its own.
    ///
    /// # Errors
    /// As [`run`](Executable::run); a number of lists other than that of the devices.
    pub fn run_replicas(&self, inputs: Vec<Vec<Input<'_>>>) -> Result<Vec<Vec<DeviceBuffer>>> {
        let lists: Vec<Vec<&DeviceBuffer>> =
            inputs.iter().map(|list| list.iter().map(Input::buffer).collect()).collect();
        let is_borrowed =
            |i: &usize| inputs.iter().any(|list| matches!(list.get(*i), Some(Input::Borrowed(_))));
        let borrowed: Vec<usize> = (0..self.parameters.len()).filter(is_borrowed).collect();
        self.execute(&lists, &borrowed)
    }

    /// As [`run_replicas`](Executable::run_replicas). The memory of arguments that are not `borrowed` may be reused even
    /// though their buffers are references: such a buffer is deleted then.
    pub(crate) fn execute(
        &self,
        lists: &[Vec<&DeviceBuffer>],
        borrowed: &[usize],
    ) -> Result<Vec<Vec<DeviceBuffer>>> {
        self.check(lists)?;
        let raw: Vec<Vec<*mut RawBuffer>> =
            lists.iter().map(|list| list.iter().map(|buffer| buffer.handle().raw()).collect()).collect();
        let argument_lists: Vec<*const *mut RawBuffer> = raw.iter().map(Vec::as_ptr).collect();
        let mut results = vec![vec![null_mut::<RawBuffer>(); self.results.len()]; lists.len()];
        let output_lists: Vec<*mut *mut RawBuffer> = results.iter_mut().map(Vec::as_mut_ptr).collect();
        let borrowed: Vec<i64> = borrowed.iter().map(|i| *i as i64).collect();
        let options = ExecuteOptions {
            non_donatable_input_indices: borrowed.as_ptr(),
            num_non_donatable_input_indices: borrowed.len(),
            ..Default::default()
        };
        let mut execute = LoadedExecutableExecute {
            executable: self.loaded.1.raw(),
            options: &options,
            argument_lists: argument_lists.as_ptr(),
            num_devices: lists.len(),
            num_args: self.parameters.len(),
            output_lists: output_lists.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the executable and all buffers are alive and of one client (`check`). There is a list of arguments for
        // each device, as long as `num_args`, and a list of results with room for all. The plugin keeps the memory of
        // arguments until the program has read it.
        unsafe { self.client().table().call(&mut execute) }
            .map_err(|e| e.error(format_args!("cannot run the program on {}", self.devices[0])))?;
        // Every buffer has its owner before the first error is returned.
        let owned: Vec<Vec<Result<DeviceBuffer>>> =
            results.iter().zip(&self.devices).map(|(list, device)| self.own(list, device)).collect();
        owned.into_iter().map(|list| list.into_iter().collect()).collect()
    }

    /// The owners of the results on a device.
    fn own(&self, results: &[*mut RawBuffer], device: &Device) -> Vec<Result<DeviceBuffer>> {
        let own = |(raw, (dtype, dims)): (&*mut RawBuffer, &(DType, Vec<usize>))| {
            let buffer = Handle::new(*raw, "result")?;
            // SAFETY: the run has just returned this buffer.
            Ok(unsafe { DeviceBuffer::own(buffer, device, *dtype, dims) })
        };
        results.iter().zip(&self.results).map(own).collect()
    }

    /// Checks the arguments of a run.
    fn check(&self, lists: &[Vec<&DeviceBuffer>]) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Feed, message));
        if lists.len() != self.devices.len() {
            return wrong(format!(
                "the program was compiled for {} devices, and arguments are given for {}",
                self.devices.len(),
                lists.len()
            ));
        }
        for (list, device) in lists.iter().zip(&self.devices) {
            if list.len() != self.parameters.len() {
                let needed = self.parameters.len();
                return wrong(format!("the program needs {needed} arguments, and {} are given", list.len()));
            }
            for (i, (buffer, parameter)) in list.iter().zip(&self.parameters).enumerate() {
                let name = &parameter.name;
                if buffer.dtype() != parameter.dtype || buffer.dims() != parameter.dims {
                    let (needed, given) = (parameter.meta(), buffer.meta());
                    return wrong(format!("argument {i} (`{name}`) needs {needed}, not {given}"));
                }
                if buffer.device() != device {
                    let given = buffer.device();
                    return wrong(match given.client().is_same(self.client()) {
                        true => format!("argument {i} (`{name}`) is needed on {device}, and is on {given}"),
                        false => format!("argument {i} (`{name}`) is a buffer of another client"),
                    });
                }
            }
        }
        Ok(())
    }

    /// The memory that it takes on each device.
    ///
    /// # Errors
    /// The plugin's: a compiler that does not say.
    pub fn memory(&self) -> Result<ProgramMemory> {
        let mut stats =
            ExecutableGetCompiledMemoryStats { executable: self.unloaded.1.raw(), ..Default::default() };
        // SAFETY: the executable is alive.
        unsafe { self.client().table().call(&mut stats) }
            .map_err(|e| e.error("cannot read the memory of the program"))?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(ProgramMemory {
            code: bytes(stats.generated_code_size_in_bytes),
            arguments: bytes(stats.argument_size_in_bytes),
            results: bytes(stats.output_size_in_bytes),
            aliased: bytes(stats.alias_size_in_bytes),
            temporaries: bytes(stats.temp_size_in_bytes),
            peak: bytes(stats.peak_memory_in_bytes),
        })
    }

    /// The executable in the plugin's format, which lacks the parameters.
    pub(super) fn serialize(&self) -> Result<Vec<u8>> {
        let mut given = ExecutableSerialize { executable: self.unloaded.1.raw(), ..Default::default() };
        // SAFETY: the executable is alive; the bytes are, until their owner is deleted.
        unsafe {
            self.client().table().call(&mut given).map_err(|e| e.error("cannot save the executable"))?;
            let bytes = array(given.serialized_bytes, given.serialized_bytes_size).to_vec();
            if let Some(delete) = given.serialized_executable_deleter {
                delete(given.serialized_executable);
            }
            Ok(bytes)
        }
    }
}

impl Unloaded {
    /// Dtypes and shapes of the results.
    fn results(&self) -> Result<Vec<(DType, Vec<usize>)>> {
        let (table, executable) = (self.0.table(), self.1.raw());
        let mut number = ExecutableNumOutputs { executable, ..Default::default() };
        let mut types = ExecutableOutputElementTypes { executable, ..Default::default() };
        let mut dims = ExecutableOutputDimensions { executable, ..Default::default() };
        // SAFETY: the executable is alive, and keeps the arrays. `dims` has all dimensions in a row, as many for each
        // result as `ranks` says.
        let (codes, ranks, sizes) = unsafe {
            table.call(&mut number).map_err(|e| e.error("cannot describe the results"))?;
            table.call(&mut types).map_err(|e| e.error("cannot describe the results"))?;
            table.call(&mut dims).map_err(|e| e.error("cannot describe the results"))?;
            let ranks = array(dims.dim_sizes, dims.num_outputs);
            (array(types.output_types, types.num_output_types), ranks, array(dims.dims, ranks.iter().sum()))
        };
        if codes.len() != number.num_outputs || ranks.len() != number.num_outputs {
            return Err(Error::new(
                ErrorKind::Device,
                "the plugin contradicts itself about the number of results",
            ));
        }
        let mut sizes = sizes.iter();
        let result = |(i, (code, rank)): (usize, (&u32, &usize))| {
            let dims: Result<Vec<usize>, _> =
                sizes.by_ref().take(*rank).map(|d| usize::try_from(*d)).collect();
            let dtype = dtype_of_code(*code).map_err(|name| {
                Error::new(
                    ErrorKind::Program,
                    format!("result {i} has element type {name}, which tensors cannot hold"),
                )
            })?;
            let dims = dims.map_err(|_| {
                Error::new(ErrorKind::Program, format!("result {i} has an unknown dimension"))
            })?;
            Ok((dtype, dims))
        };
        codes.iter().zip(ranks).enumerate().map(result).collect()
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.parameters.iter().map(ToString::to_string).collect();
        let results: Vec<String> = self.results().map(|meta| meta.to_string()).collect();
        write!(f, "Executable(({}) -> ({}))", parameters.join(", "), results.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pjrt::Plugin;

    #[test]
    #[ignore = "needs AUTOBWD_PJRT_PLUGIN"]
    fn bytes_of_another_format_are_an_error_of_the_plugin() {
        let plugin = Plugin::from_env().unwrap().expect("AUTOBWD_PJRT_PLUGIN is set");
        let client = plugin.client(&Default::default()).unwrap();
        for bytes in [&b""[..], b"no executable", &[0; 1000], &[0x0a; 1000]] {
            let e = Executable::deserialize(&client, bytes, vec![]).unwrap_err();
            assert!(e.to_string().starts_with("cannot load the executable: "), "{e}");
        }
    }
}
