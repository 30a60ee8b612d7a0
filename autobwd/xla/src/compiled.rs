//! Lowered programs, compiled: runs with named feeds, fetches and states.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use autobwd::{DType, Error, ErrorKind, Meta, Result, Tensor};
use autobwd_core::error::did_you_mean;

use crate::{
    Argument, DeviceScope, Lowered, Output, Source, Target,
    pjrt::{Device, DeviceBuffer, Executable},
};

/// A [`Lowered`] program, compiled for a device.
///
/// Several threads may run it at the same time, each with its own scope.
#[derive(Debug)]
pub struct CompiledProgram {
    executable: Executable,
    arguments: Vec<Argument>,
    results: Vec<Output>,
}

/// A value that is fed.
enum Fed<'a> {
    /// Uploaded for this run.
    Uploaded(DeviceBuffer),
    /// The caller's.
    Borrowed(&'a DeviceBuffer),
}

impl Fed<'_> {
    fn buffer(&self) -> &DeviceBuffer {
        match self {
            Fed::Uploaded(buffer) => buffer,
            Fed::Borrowed(buffer) => buffer,
        }
    }
}

impl Lowered {
    /// Compiles the program for a device.
    ///
    /// # Errors
    /// Those of [`check`](Lowered::check) and of [`Device::compile`]; arguments or results that contradict the text.
    pub fn compile(&self, device: &Device) -> Result<CompiledProgram> {
        self.check()?;
        let executable = device.compile(&self.text)?;
        let wrong = |message| Err(Error::new(ErrorKind::Program, format!("lowered program: {message}")));
        let in_text = executable.parameters();
        if self.arguments.len() != in_text.len() {
            let n = self.arguments.len();
            return wrong(format!("{n} arguments are declared, and the text has {}", in_text.len()));
        }
        for (own, text) in self.arguments.iter().zip(in_text) {
            let name = &own.name;
            if own.dtype != text.dtype || own.dims != text.dims {
                let meta = meta(own.dtype, &own.dims);
                return wrong(format!(
                    "argument `{name}` is declared as {meta}, and is {} in the text",
                    text.meta()
                ));
            }
            if own.donated != text.donated {
                let donated = |donated| if donated { "donated" } else { "not donated" };
                let (own, text) = (donated(own.donated), donated(text.donated));
                return wrong(format!("argument `{name}` is declared as {own}, and is {text} in the text"));
            }
        }
        if self.results.len() != executable.results().len() {
            let (n, text) = (self.results.len(), executable.results().len());
            return wrong(format!("{n} results are declared, and the text has {text}"));
        }
        for (own, text) in self.results.iter().zip(executable.results()) {
            let (name, meta) = (&own.name, meta(own.dtype, &own.dims));
            if meta != text {
                return wrong(format!("result `{name}` is declared as {meta}, and is {text} in the text"));
            }
        }
        Ok(CompiledProgram { executable, arguments: self.arguments.clone(), results: self.results.clone() })
    }
}

impl CompiledProgram {
    /// The compiled program, with arguments and results by position.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Runs the program once and returns the fetches. States are read from the scope, and replaced by their new values.
    ///
    /// # Errors
    /// Feeds or states that are missing, or of another dtype or shape; an unknown feed or fetch. After such an error the
    /// scope is as it was. If the device fails, states may have been lost, and are missing then.
    pub fn run(
        &self,
        scope: &mut DeviceScope,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let metas: Vec<(&str, Meta)> = feeds.iter().map(|(name, value)| (*name, value.meta())).collect();
        self.check(scope, &metas, fetches)?;
        let upload = |value: &&Tensor| Ok(Fed::Uploaded(scope.device().upload(value)?));
        let fed: Result<Vec<(&str, Fed<'_>)>> =
            feeds.iter().map(|(name, value)| Ok((*name, upload(value)?))).collect();
        let results = self.start(scope, &fed?)?;
        let fetch = |name: &&str| match results.iter().find(|(own, _)| own == name) {
            Some((_, buffer)) => buffer.download(),
            None => Err(Error::internal("a fetch that was not checked")),
        };
        fetches.iter().map(fetch).collect()
    }

    /// As [`run`](CompiledProgram::run), with feeds that are on the device already, and fetches that stay there and may
    /// still be computed. Feeds are only read. Failures of the computation are errors of the fetches.
    ///
    /// # Errors
    /// As [`run`](CompiledProgram::run); a fetch that is named twice; a feed on another device.
    pub fn run_on_device(
        &self,
        scope: &mut DeviceScope,
        feeds: &[(&str, &DeviceBuffer)],
        fetches: &[&str],
    ) -> Result<Vec<DeviceBuffer>> {
        let metas: Vec<(&str, Meta)> = feeds.iter().map(|(name, value)| (*name, value.meta())).collect();
        self.check(scope, &metas, fetches)?;
        if let Some(i) = (1..fetches.len()).find(|i| fetches[..*i].contains(&fetches[*i])) {
            return Err(Error::new(ErrorKind::Fetch, format!("`{}` is fetched twice", fetches[i])));
        }
        let fed: Vec<(&str, Fed<'_>)> =
            feeds.iter().map(|(name, value)| (*name, Fed::Borrowed(value))).collect();
        let mut results = self.start(scope, &fed)?;
        let fetch = |name: &&str| match results.iter().position(|(own, _)| own == name) {
            Some(i) => Ok(results.swap_remove(i).1),
            None => Err(Error::internal("a fetch that was not checked")),
        };
        fetches.iter().map(fetch).collect()
    }

    /// Starts the program with checked feeds. Returns the results for the caller.
    fn start(&self, scope: &mut DeviceScope, feeds: &[(&str, Fed<'_>)]) -> Result<Vec<(&str, DeviceBuffer)>> {
        let mut buffers = Vec::with_capacity(self.arguments.len());
        let mut borrowed = vec![];
        for (i, argument) in self.arguments.iter().enumerate() {
            let fed = match argument.source {
                Source::Feed => feeds.iter().find(|(name, _)| *name == argument.name).map(|(_, fed)| fed),
                Source::State => None,
            };
            buffers.push(match fed {
                Some(fed) => fed.buffer(),
                None => scope.get(&argument.name)?,
            });
            if !argument.donated || matches!(fed, Some(Fed::Borrowed(_))) {
                borrowed.push(i);
            }
        }
        let results = match self.executable.execute(&[buffers], &borrowed) {
            Ok(mut lists) => lists.pop().unwrap_or_default(),
            Err(e) => {
                self.remove_deleted(scope);
                return Err(e);
            }
        };
        let mut fetched = vec![];
        for (output, buffer) in self.results.iter().zip(results) {
            match output.target {
                Target::Fetch => fetched.push((output.name.as_str(), buffer)),
                Target::State => scope.insert(&output.name, buffer)?,
            }
        }
        Ok(fetched)
    }

    /// Removes the states that a failed run has taken.
    fn remove_deleted(&self, scope: &mut DeviceScope) {
        for argument in self.arguments.iter().filter(|a| a.donated && a.source == Source::State) {
            if scope.get(&argument.name).is_ok_and(|buffer| buffer.is_deleted().unwrap_or(true)) {
                scope.remove(&argument.name);
            }
        }
    }

    /// Checks everything that a run is given, before the first upload.
    fn check(&self, scope: &DeviceScope, feeds: &[(&str, Meta)], fetches: &[&str]) -> Result<()> {
        let device = &self.executable.devices()[0];
        if scope.device() != device {
            let message =
                format!("the program was compiled for {device}, and the scope is on {}", scope.device());
            return Err(Error::new(ErrorKind::Device, message));
        }
        let of_source = |source: Source| self.arguments.iter().filter(move |a| a.source == source);
        let feed_names = || of_source(Source::Feed).map(|a| a.name.as_str());
        let wrong = |message: String| Err(Error::new(ErrorKind::Feed, message));
        for (i, (name, _)) in feeds.iter().enumerate() {
            if !feed_names().any(|own| own == *name) {
                let hint = did_you_mean(name, feed_names());
                return wrong(format!("`{name}` cannot be fed: the program does not read it{hint}"));
            }
            if feeds[..i].iter().any(|(other, _)| other == name) {
                return wrong(format!("`{name}` is fed twice"));
            }
        }
        for argument in of_source(Source::Feed) {
            let (name, needed) = (&argument.name, meta(argument.dtype, &argument.dims));
            match feeds.iter().find(|(fed, _)| fed == name) {
                None => return wrong(format!("`{name}` is not fed; the program needs {needed}")),
                Some((_, given)) if *given != needed => {
                    return wrong(format!("`{name}` cannot be fed: the program needs {needed}, not {given}"));
                }
                Some(_) => {}
            }
        }
        for argument in of_source(Source::State) {
            let value = scope.get(&argument.name)?;
            if value.dtype() != argument.dtype || value.dims() != argument.dims {
                let (name, needed) = (&argument.name, meta(argument.dtype, &argument.dims));
                let message =
                    format!("`{name}` of the scope is {}, and the program needs {needed}", value.meta());
                return Err(Error::new(ErrorKind::Shape, message));
            }
        }
        let results = || self.results.iter().filter(|r| r.target == Target::Fetch).map(|r| r.name.as_str());
        match fetches.iter().find(|name| !results().any(|own| own == **name)) {
            Some(name) => {
                let hint = did_you_mean(name, results());
                let message =
                    format!("`{name}` cannot be fetched: it is no result of the compiled program{hint}");
                Err(Error::new(ErrorKind::Fetch, message))
            }
            None => Ok(()),
        }
    }
}

fn meta(dtype: DType, dims: &[usize]) -> Meta {
    Meta::new(dtype, dims)
}

/// The compiled programs of a device. A program that it has is not compiled again.
#[derive(Debug)]
pub struct ProgramCache {
    device: Device,
    /// By their text.
    programs: Mutex<HashMap<String, Arc<CompiledProgram>>>,
}

impl ProgramCache {
    /// An empty cache.
    pub fn new(device: &Device) -> ProgramCache {
        ProgramCache { device: device.clone(), programs: Mutex::default() }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The compiled program. Other threads can use the cache while it is compiled.
    ///
    /// # Errors
    /// Those of [`Lowered::compile`].
    pub fn get(&self, lowered: &Lowered) -> Result<Arc<CompiledProgram>> {
        if let Some(program) = self.programs().get(&lowered.text)
            && (&program.arguments, &program.results) == (&lowered.arguments, &lowered.results)
        {
            return Ok(program.clone());
        }
        let program = Arc::new(lowered.compile(&self.device)?);
        self.programs().insert(lowered.text.clone(), program.clone());
        Ok(program)
    }

    /// Compiles the program if necessary, and runs it once.
    ///
    /// # Errors
    /// Those of [`get`](ProgramCache::get) and [`CompiledProgram::run`].
    pub fn run(
        &self,
        lowered: &Lowered,
        scope: &mut DeviceScope,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        self.get(lowered)?.run(scope, feeds, fetches)
    }

    /// The number of programs.
    pub fn len(&self) -> usize {
        self.programs().len()
    }

    /// Whether there are no programs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all programs.
    pub fn clear(&self) {
        self.programs().clear();
    }

    /// A thread that panics leaves the map valid.
    fn programs(&self) -> MutexGuard<'_, HashMap<String, Arc<CompiledProgram>>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
