//! Models as PaddlePaddle saves them.

use std::path::Path;

use autobwd::{
    OpInfoMap, Result,
    program::{Var, VarDesc},
};
use autobwd_ops::Model;
use prost::Message;

use crate::{
    export::export,
    files::{ModelFiles, decode_parameters, decode_program, parameter_bytes},
    import::ImportedProgram,
    info::{ParameterInfo, ParameterInfos, read_infos, write_infos},
};

/// Loads a model: `inference` or `inference.pdmodel` for files that begin with `inference`, or a folder with
/// `__model__`. Parameters are in `inference.pdiparams`, in `__params__` or in one file each.
///
/// Attributes that only select an implementation are dropped. Files before 2.6 do not mark parameters: floating point
/// tensors that operators read and none writes are marked, except statistics; those that `.pdiparams.info` calls
/// not trainable are frozen. Declared shapes of intermediate values are replaced by inferred ones.
///
/// # Errors
/// Those of the file system; other files, and files that end early; everything that is unknown to the linked
/// operators, as one list: operators, inputs, attributes that are not at their default, dtypes, kinds of variables;
/// all faults that verification finds; parameters that do not fit the program. Nothing is loaded by half.
pub fn load(path: impl AsRef<Path>) -> Result<Model> {
    let files = ModelFiles::at(path.as_ref());
    let ops = OpInfoMap::linked()?;
    let ImportedProgram { program, feeds, fetches } = files.read_program(ops)?;
    let scope = files.read_parameters(&program)?;
    Ok(Model { program, feeds, fetches, scope })
}

/// Loads a model from the bytes of its files: `.pdmodel`, `.pdiparams` and `.pdiparams.info`.
///
/// # Errors
/// As [`load`].
pub fn from_bytes(program: &[u8], parameters: Option<&[u8]>, infos: Option<&[u8]>) -> Result<Model> {
    let infos = || infos.map_or_else(|| Ok(ParameterInfos::new()), read_infos);
    let ImportedProgram { program, feeds, fetches } =
        decode_program(program, infos, OpInfoMap::linked()?, "the program")?;
    let scope = decode_parameters(parameters.unwrap_or_default(), &program, "the parameters")?;
    Ok(Model { program, feeds, fetches, scope })
}

/// The bytes of `.pdmodel`, `.pdiparams` and `.pdiparams.info`, as [`save`] writes them.
///
/// # Errors
/// As [`save`].
pub fn to_bytes(model: &Model) -> Result<[Vec<u8>; 3]> {
    let file = export(&model.program, OpInfoMap::linked()?, &model.feeds, &model.fetches)?;
    let parameters = parameter_bytes(&model.program, &model.scope)?;
    Ok([file.encode_to_vec(), parameters, write_infos(&infos(model))])
}

/// Saves the model for PaddlePaddle 2.6: `path.pdmodel`, `path.pdiparams` and `path.pdiparams.info`, for
/// `paddle.static.load_inference_model`. Operators that PaddlePaddle does not know are written in terms of those
/// that it knows ([`OpInfoMap::composition`]).
///
/// # Errors
/// Everything that PaddlePaddle cannot express, as one list: operators without such a composition, attributes, slots;
/// values that the scope does not hold; those of the file system.
pub fn save(model: &Model, path: impl AsRef<Path>) -> Result<()> {
    let [program, parameters, infos] = to_bytes(model)?;
    ModelFiles::at(path.as_ref()).write(&program, &parameters, &infos)
}

/// What the file about parameters says.
fn infos(model: &Model) -> ParameterInfos {
    let info = |(var, desc): (&Var, &VarDesc)| {
        let trainable = !desc.stop_gradient;
        let info = ParameterInfo {
            stop_gradient: !(desc.parameter && trainable),
            trainable: desc.parameter.then_some(trainable),
        };
        (model.program.name(*var).to_string(), info)
    };
    let kept = model.program.root().vars.iter().filter(|(_, desc)| desc.persistable);
    kept.map(info).collect()
}
