//! Lowered programs, compiled: runs with named feeds, fetches and states.
//!
//! States stay in a `DeviceScope`, in the same memory if they are donated.

use autobwd::{DType, Error, ErrorKind, Meta, Result, Tensor};
use autobwd_core::__private::{Initialisers, did_you_mean, internals::*};

use crate::{
    Argument, DeviceScope, Lowered, Output, Source, Target,
    pjrt::{Client, CompileOptions, Device, DeviceBuffer, Executable},
};

/// A [`Lowered`] program, compiled for a device.
///
/// Several threads may run it at the same time, each with its own scope.
#[derive(Debug)]
pub struct CompiledProgram {
    executable: Executable,
    arguments: Vec<Argument>,
    results: Vec<Output>,
    /// The initialisers of the program, if an executor has lowered it.
    pub(crate) initialisers: Initialisers,
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
        self.compile_with(device.client(), &CompileOptions::new(std::slice::from_ref(device)))
    }

    /// Compiles the program with these options: for several devices, with a replica on each, or with flags of XLA.
    ///
    /// # Errors
    /// As [`compile`](Lowered::compile); more or fewer devices than replicas.
    pub fn compile_with(&self, client: &Client, options: &CompileOptions) -> Result<CompiledProgram> {
        self.check()?;
        if (self.replicas, self.partitions) != options.counts() {
            let (needed, given) = (devices(self.replicas, self.partitions), options.counts());
            let text = format!("the program is for {needed}, not for {}", devices(given.0, given.1));
            return Err(Error::new(ErrorKind::Device, text));
        }
        let executable = client.compile(&self.text, options)?;
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
        Ok(CompiledProgram {
            executable,
            arguments: self.arguments.clone(),
            results: self.results.clone(),
            initialisers: Initialisers::default(),
        })
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
    /// Feeds or states that are missing, or of another dtype or shape; an unknown feed or fetch; a value that another
    /// program has initialised by another operator. After such an error the scope is as it was. If the device fails,
    /// states may have been lost, and are missing then.
    pub fn run(
        &self,
        scope: &mut DeviceScope,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let mut fetched = self.run_replicas(std::slice::from_mut(scope), &[feeds], fetches)?;
        Ok(fetched.pop().unwrap_or_default())
    }

    /// As [`run`](CompiledProgram::run), on all devices of the program: a scope and a list of feeds for each, in the order
    /// of [`Executable::devices`]. Returns a list of fetches for each.
    ///
    /// # Errors
    /// As [`run`](CompiledProgram::run); numbers of scopes or feeds other than that of the devices.
    pub fn run_replicas(
        &self,
        scopes: &mut [DeviceScope],
        feeds: &[&[(&str, &Tensor)]],
        fetches: &[&str],
    ) -> Result<Vec<Vec<Tensor>>> {
        let metas: Vec<Vec<(&str, Meta)>> = feeds
            .iter()
            .map(|list| list.iter().map(|(name, value)| (*name, value.meta())).collect())
            .collect();
        self.check(scopes, &metas, fetches)?;
        let mut fed = Vec::with_capacity(feeds.len());
        for (feeds, scope) in feeds.iter().zip(&*scopes) {
            let mut list = Vec::with_capacity(feeds.len());
            for (name, value) in *feeds {
                list.push((*name, Fed::Uploaded(scope.device().upload(value)?)));
            }
            fed.push(list);
        }
        let results = self.start(scopes, &fed)?;
        let fetch =
            |list: &Vec<(&str, DeviceBuffer)>, name: &str| match list.iter().find(|(own, _)| *own == name) {
                Some((_, buffer)) => buffer.download(),
                None => Err(Error::internal("a fetch that was not checked")),
            };
        results.iter().map(|list| fetches.iter().map(|name| fetch(list, name)).collect()).collect()
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
        let scopes = std::slice::from_mut(scope);
        self.check(scopes, &[feeds.iter().map(|(name, value)| (*name, value.meta())).collect()], fetches)?;
        if let Some(i) = (1..fetches.len()).find(|i| fetches[..*i].contains(&fetches[*i])) {
            return Err(Error::new(ErrorKind::Fetch, format!("`{}` is fetched twice", fetches[i])));
        }
        let fed: Vec<(&str, Fed<'_>)> =
            feeds.iter().map(|(name, value)| (*name, Fed::Borrowed(value))).collect();
        let mut results = self.start(scopes, &[fed])?.pop().unwrap_or_default();
        let fetch = |name: &&str| match results.iter().position(|(own, _)| own == name) {
            Some(i) => Ok(results.swap_remove(i).1),
            None => Err(Error::internal("a fetch that was not checked")),
        };
        fetches.iter().map(fetch).collect()
    }

    /// Starts the program with checked feeds. Returns the results for the caller, a list for each device.
    fn start(
        &self,
        scopes: &mut [DeviceScope],
        feeds: &[Vec<(&str, Fed<'_>)>],
    ) -> Result<Vec<Vec<(&str, DeviceBuffer)>>> {
        let mut lists = Vec::with_capacity(scopes.len());
        let mut is_borrowed = vec![false; self.arguments.len()];
        for (scope, feeds) in scopes.iter().zip(feeds) {
            let mut list = Vec::with_capacity(self.arguments.len());
            for (argument, is_borrowed) in self.arguments.iter().zip(&mut is_borrowed) {
                let fed = match argument.source {
                    Source::Feed => feeds.iter().find(|(name, _)| *name == argument.name).map(|(_, fed)| fed),
                    Source::State => None,
                };
                list.push(match fed {
                    Some(fed) => fed.buffer(),
                    None => scope.get(&argument.name)?,
                });
                *is_borrowed |= !argument.donated || matches!(fed, Some(Fed::Borrowed(_)));
            }
            lists.push(list);
        }
        let borrowed: Vec<usize> = (0..is_borrowed.len()).filter(|i| is_borrowed[*i]).collect();
        let results = match self.executable.execute(&lists, &borrowed) {
            Ok(results) => results,
            Err(e) => {
                scopes.iter_mut().for_each(|scope| self.remove_deleted(scope));
                return Err(e);
            }
        };
        let mut fetched = vec![];
        for (scope, results) in scopes.iter_mut().zip(results) {
            let mut list = vec![];
            for (output, buffer) in self.results.iter().zip(results) {
                match output.target {
                    Target::Fetch => list.push((output.name.as_str(), buffer)),
                    Target::State => scope.insert(&output.name, buffer)?,
                }
            }
            scope.initialisers.record(&self.initialisers);
            fetched.push(list);
        }
        Ok(fetched)
    }

    /// Removes the states that a failed run has taken.
    fn remove_deleted(&self, scope: &mut DeviceScope) {
        for argument in self.arguments.iter().filter(|a| a.donated && a.source == Source::State) {
            if scope.find(&argument.name).is_some_and(|buffer| buffer.is_deleted().unwrap_or(true)) {
                scope.remove(&argument.name);
            }
        }
    }

    /// Checks everything that a run is given, before the first upload.
    fn check(&self, scopes: &[DeviceScope], feeds: &[Vec<(&str, Meta)>], fetches: &[&str]) -> Result<()> {
        let devices = self.executable.devices();
        if (scopes.len(), feeds.len()) != (devices.len(), devices.len()) {
            let (n, scopes, feeds) = (devices.len(), scopes.len(), feeds.len());
            return Err(Error::new(
                ErrorKind::Device,
                format!(
                    "the program was compiled for {n} devices; {scopes} scopes and {feeds} lists of feeds are given"
                ),
            ));
        }
        for ((scope, feeds), device) in scopes.iter().zip(feeds).zip(devices) {
            if scope.device() != device {
                let given = scope.device();
                let message = format!("the program was compiled for {device}, and the scope is on {given}");
                return Err(Error::new(ErrorKind::Device, message));
            }
            self.check_feeds(feeds)?;
            self.check_states(scope)?;
            scope.initialisers.check(&self.initialisers)?;
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

    /// The arguments of a source.
    fn of_source(&self, source: Source) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(move |a| a.source == source)
    }

    /// Checks the feeds of a device.
    fn check_feeds(&self, feeds: &[(&str, Meta)]) -> Result<()> {
        let names = || self.of_source(Source::Feed).map(|a| a.name.as_str());
        let wrong = |message: String| Err(Error::new(ErrorKind::Feed, message));
        for (i, (name, _)) in feeds.iter().enumerate() {
            if !names().any(|own| own == *name) {
                let hint = did_you_mean(name, names());
                return wrong(format!("`{name}` cannot be fed: the program does not read it{hint}"));
            }
            if feeds[..i].iter().any(|(other, _)| other == name) {
                return wrong(format!("`{name}` is fed twice"));
            }
        }
        for argument in self.of_source(Source::Feed) {
            let (name, needed) = (&argument.name, meta(argument.dtype, &argument.dims));
            match feeds.iter().find(|(fed, _)| fed == name) {
                None => return wrong(format!("`{name}` is not fed; the program needs {needed}")),
                Some((_, given)) if *given != needed => {
                    return wrong(format!("`{name}` cannot be fed: the program needs {needed}, not {given}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The states that a run writes, and how they are divided.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        let states = self.results.iter().filter(|result| result.target == Target::State);
        states.map(|result| (result.name.as_str(), result.axis))
    }

    /// Checks the states in a scope.
    pub(crate) fn check_states(&self, scope: &DeviceScope) -> Result<()> {
        for argument in self.of_source(Source::State) {
            let value = scope.get(&argument.name)?;
            if value.dtype() != argument.dtype || value.dims() != argument.dims {
                let (name, needed) = (&argument.name, meta(argument.dtype, &argument.dims));
                let message =
                    format!("`{name}` of the scope is {}, and the program needs {needed}", value.meta());
                return Err(Error::new(ErrorKind::Shape, message));
            }
        }
        Ok(())
    }
}

/// The devices of a program, in words.
fn devices(replicas: usize, partitions: usize) -> String {
    match (replicas, partitions) {
        (1, 1) => "1 device".into(),
        (1, n) => format!("{n} devices that share its tensors"),
        (n, _) => format!("{n} devices with a replica on each"),
    }
}

fn meta(dtype: DType, dims: &[usize]) -> Meta {
    Meta::new(dtype, dims)
}
