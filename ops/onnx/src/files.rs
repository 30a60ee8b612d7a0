//! The files of models.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use autobwd::{Error, ErrorKind, Result, tensor::write_atomically};
use autobwd_ops::Model;
use prost::{Message, bytes::Buf};

use crate::{
    export::export, external::ExternalData, file_buf::FileBuf, import::import, options::LoadOptions, proto,
};

/// The largest files of models that are read, in bytes: the limit of protocol buffers.
const MODEL_LIMIT: u64 = 1 << 31;

/// Loads a model.
///
/// # Errors
/// As [`load_with`].
pub fn load(path: impl AsRef<Path>) -> Result<Model> {
    load_with(path, &LoadOptions::default())
}

/// Loads a model with what is known in advance.
///
/// # Errors
/// Those of the file system; other files; everything that stands in the way, as one list: operators, attributes, dtypes,
/// inputs whose values are needed.
pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Model> {
    let path = path.as_ref();
    let (source, external) = (format!("`{}`", path.display()), ExternalData::next_to(path));
    let mut file = FileBuf::open(path, MODEL_LIMIT)?;
    let model = parse(&mut file, &source);
    file.finish()?;
    import(model?, &external, options, &source)
}

/// Loads a model from the bytes of its file; it may have no external data.
///
/// # Errors
/// As [`load_with`].
pub fn from_bytes(bytes: &[u8], options: &LoadOptions) -> Result<Model> {
    import(parse(bytes, "the model")?, &ExternalData::none(), options, "the model")
}

/// The bytes of a model's file, with operators of version 18: for inference, or a whole training step. Operators are
/// written by a rule, by their formula or by their composition ([`OpInfoMap::composition`]).
///
/// Values that the program keeps and does not write are initializers. Those that it writes, such as parameters that an
/// optimizer updates, are inputs, with the value of the scope as default, and outputs, whose names end in `.next`: feed
/// these outputs to the inputs of the next step. Metadata `next.NAME` of the model tell their names.
///
/// # Errors
/// Everything that stands in the way, as one list: operators without such a form, shapes that must be known, values that
/// the scope does not hold.
///
/// [`OpInfoMap::composition`]: autobwd::OpInfoMap::composition
pub fn to_bytes(model: &Model) -> Result<Vec<u8>> {
    Ok(export(model)?.encode_to_vec())
}

/// Saves a model in a file, as [`to_bytes`] writes it.
///
/// # Errors
/// As [`to_bytes`]; those of the file system.
pub fn save(model: &Model, path: impl AsRef<Path>) -> Result<()> {
    write_atomically(path, &to_bytes(model)?)
}

/// What a model says about itself.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// The names of the inputs without initializers, in order.
    pub inputs: Vec<String>,
    /// The names of the outputs, in order.
    pub outputs: Vec<String>,
    /// The operators of the main graph and of the functions, without repetition.
    pub operators: BTreeSet<String>,
}

/// Reads what a model says about itself from the bytes of its file.
///
/// # Errors
/// Other files.
pub fn signature(bytes: &[u8]) -> Result<Signature> {
    let model = parse(bytes, "the model")?;
    let mut signature = Signature::default();
    let nodes = model.functions.iter().flat_map(|function| &function.node);
    signature.operators.extend(nodes.map(|node| node.op_type().to_string()));
    if let Some(graph) = &model.graph {
        signature.operators.extend(graph.node.iter().map(|node| node.op_type().to_string()));
        let known: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        let inputs = graph.input.iter().map(|input| input.name().to_string());
        signature.inputs = inputs.filter(|name| !known.contains(name.as_str())).collect();
        signature.outputs = graph.output.iter().map(|output| output.name().to_string()).collect();
    }
    Ok(signature)
}

fn parse(bytes: impl Buf, source: &str) -> Result<proto::ModelProto> {
    proto::ModelProto::decode(bytes).map_err(|e| {
        Error::new(ErrorKind::Format, format!("{source} is not a model of ONNX: {e}")).caused_by(e)
    })
}
