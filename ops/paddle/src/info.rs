//! `.pdiparams.info`: a pickled dictionary that says which parameters are trained.

use std::collections::BTreeMap;

use autobwd::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_pickle::{DeOptions, SerOptions};

/// What the file says about a variable.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ParameterInfo {
    /// The name within a layer.
    #[serde(default)]
    pub(crate) structured_name: String,
    #[serde(default)]
    pub(crate) stop_gradient: bool,
    /// Absent for variables that are no parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trainable: Option<bool>,
}

pub(crate) type ParameterInfos = BTreeMap<String, ParameterInfo>;

/// Reads the bytes of a file.
///
/// # Errors
/// Other bytes.
pub(crate) fn read_infos(bytes: &[u8]) -> Result<ParameterInfos> {
    serde_pickle::from_slice(bytes, DeOptions::new())
        .map_err(|e| Error::new(ErrorKind::Format, format!("not a dictionary of parameters: {e}")))
}

/// The bytes of a file.
///
/// # Errors
/// Those of the library; there are none for such a dictionary.
pub(crate) fn write_infos(infos: &ParameterInfos) -> Result<Vec<u8>> {
    serde_pickle::to_vec(infos, SerOptions::new().proto_v2())
        .map_err(|e| Error::new(ErrorKind::Internal, format!("a dictionary of parameters: {e}")))
}
