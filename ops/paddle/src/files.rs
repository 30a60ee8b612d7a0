//! The files of a model: their names, and reading and writing them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use autobwd::{
    Error, ErrorKind, OpInfoMap, Program, Result, Scope, Tensor, program::VarKind, tensor::read_file,
};
use autobwd_core::__private::Obstacles;
use prost::Message;

use crate::{
    import::{ImportedProgram, import},
    info::{ParameterInfos, read_infos},
    parameters, proto,
    tensors::{LodTensorReader, write_tensor},
};

/// The largest files of programs, of parameters and about parameters that are read, in bytes.
const PROGRAM_LIMIT: u64 = 1 << 28;
const PARAMETERS_LIMIT: u64 = 1 << 34;
const INFOS_LIMIT: u64 = 1 << 24;

/// Where the files of a model are.
pub(crate) struct ModelFiles {
    pub(crate) program: PathBuf,
    /// One file of all parameters, or the folder of one file each.
    parameters: PathBuf,
    infos: PathBuf,
}

impl ModelFiles {
    /// The files for a path: a `.pdmodel` file, the common start of the files' names, or a folder with `__model__`.
    pub(crate) fn at(path: &Path) -> ModelFiles {
        if path.is_dir() && path.join("__model__").exists() {
            let combined = path.join("__params__");
            return ModelFiles {
                program: path.join("__model__"),
                parameters: if combined.exists() { combined } else { path.into() },
                infos: path.join("__params__.info"),
            };
        }
        let mut start = path.as_os_str().to_owned();
        if path.extension().is_some_and(|extension| extension == "pdmodel") {
            start = path.with_extension("").into_os_string();
        }
        let with = |ending: &str| {
            let mut name = start.clone();
            name.push(ending);
            PathBuf::from(name)
        };
        ModelFiles {
            program: with(".pdmodel"),
            parameters: with(".pdiparams"),
            infos: with(".pdiparams.info"),
        }
    }

    /// The program, with its parameters marked.
    pub(crate) fn read_program(&self, ops: &OpInfoMap) -> Result<ImportedProgram> {
        let source = format!("`{}`", self.program.display());
        decode_program(&read_file(&self.program, PROGRAM_LIMIT)?, || self.read_infos(), ops, &source)
    }

    /// The values of all variables that the program keeps.
    pub(crate) fn read_parameters(&self, program: &Program) -> Result<Scope> {
        let source = format!("`{}`", self.parameters.display());
        match kept(program) {
            kept if kept.is_empty() => Ok(Scope::new()),
            kept if self.parameters.is_dir() => {
                let mut parameters = Parameters::of(program);
                parameters.separate(&self.parameters, &kept);
                parameters.finish(&source)
            }
            _ => decode_parameters(&read_file(&self.parameters, PARAMETERS_LIMIT)?, program, &source),
        }
    }

    /// What the file about parameters says; nothing if it is not there.
    fn read_infos(&self) -> Result<ParameterInfos> {
        if !self.infos.exists() {
            return Ok(ParameterInfos::new());
        }
        let within = |e: Error| Error::new(e.kind(), format!("`{}`: {e}", self.infos.display())).caused_by(e);
        read_infos(&read_file(&self.infos, INFOS_LIMIT)?).map_err(within)
    }

    /// Writes all three files. The program is the last: without it, there is no model.
    pub(crate) fn write(&self, program: &[u8], parameters: &[u8], infos: &[u8]) -> Result<()> {
        autobwd::tensor::write_atomically(&self.parameters, parameters)?;
        autobwd::tensor::write_atomically(&self.infos, infos)?;
        autobwd::tensor::write_atomically(&self.program, program)
    }
}

/// The program in the bytes of a file, with its parameters marked. Faults of the program come before those of `infos`.
pub(crate) fn decode_program(
    bytes: &[u8],
    infos: impl FnOnce() -> Result<ParameterInfos>,
    ops: &OpInfoMap,
    source: &str,
) -> Result<ImportedProgram> {
    let file = proto::ProgramDesc::decode(bytes).map_err(|e| {
        Error::new(ErrorKind::Format, format!("{source} is not a program of PaddlePaddle: {e}")).caused_by(e)
    })?;
    let mut imported = import(file, ops, source)?;
    parameters::mark_parameters(&mut imported.program, &infos()?);
    Ok(imported)
}

/// The values in the bytes of a file of all parameters.
pub(crate) fn decode_parameters(bytes: &[u8], program: &Program, source: &str) -> Result<Scope> {
    let mut parameters = Parameters::of(program);
    parameters.combined(bytes, &kept(program));
    parameters.finish(source)
}

/// Reads the program of a model without its parameters.
///
/// # Errors
/// Those of [`load`](crate::load) about the program.
pub fn load_program(path: impl AsRef<Path>) -> Result<Program> {
    Ok(ModelFiles::at(path.as_ref()).read_program(OpInfoMap::linked()?)?.program)
}

/// The names of the dense tensors that a program keeps, in the order of the file: by bytes.
pub(crate) fn kept(program: &Program) -> Vec<&str> {
    let tensors =
        program.root().vars.iter().filter(|(_, desc)| desc.persistable && desc.kind == VarKind::Tensor);
    let mut names: Vec<&str> = tensors.map(|(var, _)| program.name(*var)).collect();
    names.sort_unstable();
    names
}

/// The bytes of a parameter file.
///
/// # Errors
/// Values that are not in the scope, as one list.
pub(crate) fn parameter_bytes(program: &Program, scope: &Scope) -> Result<Vec<u8>> {
    let (mut bytes, mut obstacles) = (vec![], Obstacles::default());
    for name in kept(program) {
        if let Some(tensor) = obstacles.note("", scope.get(name)) {
            write_tensor(tensor, &mut bytes);
        }
    }
    obstacles.require_none("the parameters cannot be written")?;
    Ok(bytes)
}

/// Parameters that are being read.
struct Parameters<'a> {
    program: &'a Program,
    scope: Scope,
    obstacles: Obstacles,
}

impl Parameters<'_> {
    fn of(program: &Program) -> Parameters<'_> {
        Parameters { program, scope: Scope::new(), obstacles: Obstacles::default() }
    }

    fn finish(self, source: &str) -> Result<Scope> {
        self.obstacles.require_none(&format!("{source} does not fit the program"))?;
        Ok(self.scope)
    }

    /// Reads a file that holds all of them.
    fn combined(&mut self, bytes: &[u8], names: &[&str]) {
        let mut reader = LodTensorReader::new(bytes);
        for name in names {
            match reader.read() {
                Ok(tensor) => self.keep(name, tensor),
                // What follows is not aligned.
                Err(e) => return self.obstacles.add(format!("`{name}`"), e.to_string()),
            }
        }
        if !reader.is_at_end() {
            let text = format!("it holds more than the {} tensors that the program keeps", names.len());
            self.obstacles.add("", text);
        }
    }

    /// Reads files that are named like the variables.
    fn separate(&mut self, folder: &Path, names: &[&str]) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let files: HashMap<_, PathBuf> = entries.map(|entry| (entry.file_name(), entry.path())).collect();
        for name in names {
            let Some(path) = files.get(std::ffi::OsStr::new(name)) else {
                self.obstacles.add("", format!("there is no file for `{name}`"));
                continue;
            };
            let tensor =
                read_file(path, PARAMETERS_LIMIT).and_then(|bytes| LodTensorReader::new(&bytes).read());
            if let Some(tensor) = self.obstacles.note(format!("`{name}`"), tensor) {
                self.keep(name, tensor);
            }
        }
    }

    fn keep(&mut self, name: &str, tensor: Tensor) {
        let declared = self.program.find(name).and_then(|var| self.program.root().vars.get(&var));
        let declared = declared.map(autobwd::VarDesc::meta);
        match declared.filter(|declared| !declared.agrees(&tensor.meta())) {
            Some(declared) => {
                let text =
                    format!("`{name}` is {declared} in the program, but {} in the file", tensor.meta());
                self.obstacles.add("", text);
            }
            None => self.scope.set(name, tensor),
        }
    }
}
