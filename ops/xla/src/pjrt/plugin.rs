//! Plugins: shared libraries with a compiler and a runtime for some kind of device.

#![allow(unsafe_code)]

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use autobwd::{Error, ErrorKind, Result};
use libloading::Library;

use super::{
    Client, ClientOptions, OptionValue, elf,
    sys::{Api, NamedValue, PluginAttributes, PluginInitialize, value_kind},
    table::{Table, array, text},
};

/// The oldest version of the interface whose function table this crate knows.
const OLDEST: (i32, i32) = (0, 57);

/// A loaded PJRT plugin.
///
/// A plugin is never unloaded, since its threads and static variables outlive every client.
#[derive(Clone)]
pub struct Plugin {
    table: Table,
    path: Arc<Path>,
}

impl Plugin {
    /// The environment variable that [`from_env`](Plugin::from_env) reads: the path of a plugin.
    pub const PATH_VARIABLE: &str = "AUTOBWD_PJRT_PLUGIN";

    /// Loads a plugin from a shared library. The library's code runs in this process, so it must be trusted.
    ///
    /// # Errors
    /// A path that cannot be read; a file that is not a PJRT plugin, or a truncated one; a version of the interface other than 0.57 or later.
    pub fn load(path: impl AsRef<Path>) -> Result<Plugin> {
        let path = path.as_ref();
        // A full path: the loader would search a mere name in the folders of the system.
        let full = fs::canonicalize(path).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot read `{}`: {e}", path.display())).caused_by(e)
        })?;
        let not_a_plugin = |why: String| {
            Error::new(ErrorKind::Format, format!("`{}` is not a PJRT plugin: {why}", path.display()))
        };
        elf::require_whole(&full)?;
        // SAFETY: the caller trusts the library, whose initialisers run here.
        let library = unsafe { Library::new(&full) }.map_err(|e| not_a_plugin(e.to_string()))?;
        // SAFETY: every PJRT plugin declares the function so.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *mut Api>(b"GetPjrtApi\0") };
        let entry = *entry.map_err(|_| not_a_plugin("it does not export `GetPjrtApi`".into()))?;
        // The library stays loaded for ever.
        std::mem::forget(library);
        // SAFETY: the function takes no arguments.
        let api = NonNull::new(unsafe { entry() })
            .ok_or_else(|| not_a_plugin("its function table is null".into()))?;
        // SAFETY: `GetPjrtApi` has returned the address, and the library is never unloaded.
        let table = unsafe { Table::new(api) };
        Plugin::new(table, path)
    }

    fn new(table: Table, path: &Path) -> Result<Plugin> {
        let (major, minor) = table.version();
        if major != OLDEST.0 || minor < OLDEST.1 {
            return Err(Error::new(
                ErrorKind::Format,
                format!(
                    "`{}` has version {major}.{minor} of the PJRT interface; 0.57 or a later 0.x is needed",
                    path.display()
                ),
            ));
        }
        let plugin = Plugin { table, path: path.into() };
        plugin.initialize()?;
        Ok(plugin)
    }

    /// Loads the plugin that the environment variable `AUTOBWD_PJRT_PLUGIN` names; `None` if it is not set.
    ///
    /// # Errors
    /// As [`load`](Plugin::load).
    pub fn from_env() -> Result<Option<Plugin>> {
        env::var_os(Plugin::PATH_VARIABLE).map(|path| Plugin::load(PathBuf::from(path))).transpose()
    }

    /// Initialises the plugin, once for each library.
    fn initialize(&self) -> Result<()> {
        static INITIALIZED: Mutex<Vec<usize>> = Mutex::new(vec![]);
        let mut initialized = INITIALIZED.lock().unwrap_or_else(PoisonError::into_inner);
        if !initialized.contains(&self.table.address()) {
            // SAFETY: there are no arguments.
            unsafe { self.table.call(&mut PluginInitialize::default()) }
                .map_err(|e| e.error(format_args!("cannot initialise `{}`", self.path.display())))?;
            initialized.push(self.table.address());
        }
        Ok(())
    }

    /// The path that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version of its interface.
    pub fn version(&self) -> (i32, i32) {
        self.table.version()
    }

    /// What it says about itself, versions of StableHLO say.
    ///
    /// # Errors
    /// The plugin's.
    pub fn attributes(&self) -> Result<Vec<(String, OptionValue)>> {
        let mut given = PluginAttributes::default();
        // SAFETY: the function writes an array that lives as long as the plugin.
        let values = unsafe {
            self.table.call(&mut given).map_err(|e| e.error("cannot read the attributes of the plugin"))?;
            array(given.attributes, given.num_attributes)
        };
        Ok(values.iter().filter_map(attribute).collect())
    }

    /// A client with the devices of this process.
    ///
    /// # Errors
    /// The plugin's: unknown options, no device.
    pub fn client(&self, options: &ClientOptions) -> Result<Client> {
        Client::new(self, options)
    }

    pub(super) fn table(&self) -> Table {
        self.table
    }
}

/// Name and value, if the kind is known.
fn attribute(given: &NamedValue) -> Option<(String, OptionValue)> {
    let size = given.value_size;
    // SAFETY: the plugin has written the field of the union that the kind names, and texts and arrays of these sizes.
    unsafe {
        let value = match given.kind {
            value_kind::STRING => OptionValue::String(text(given.data.string, size)),
            value_kind::INT => OptionValue::Int(given.data.int),
            value_kind::INTS => OptionValue::Ints(array(given.data.ints, size).to_vec()),
            value_kind::FLOAT => OptionValue::Float(given.data.float),
            value_kind::BOOL => OptionValue::Bool(given.data.bool),
            _ => return None,
        };
        Some((text(given.name, given.name_size), value))
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "Plugin({}, version {major}.{minor})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::pjrt::sys::ApiVersion;

    /// A table of this version with so many functions, all null.
    fn empty_table(version: (i32, i32), functions: usize) -> Table {
        #[repr(C)]
        struct Whole {
            api: Api,
            functions: [*mut u8; 8],
        }
        let api = Api {
            struct_size: size_of::<Api>() + functions * size_of::<*mut u8>(),
            extension_start: null_mut(),
            version: ApiVersion {
                struct_size: size_of::<ApiVersion>(),
                extension_start: null_mut(),
                major: version.0,
                minor: version.1,
            },
            functions: [],
        };
        let whole = Box::leak(Box::new(Whole { api, functions: [null_mut(); 8] }));
        // SAFETY: the table has the layout of a plugin's, and is never freed.
        unsafe { Table::new(NonNull::from(whole).cast()) }
    }

    #[test]
    fn other_versions_are_errors() {
        let message = |version| {
            let e = Plugin::new(empty_table(version, 8), Path::new("old.so")).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Format);
            e.to_string()
        };
        let expected = |version| {
            format!("`old.so` has version {version} of the PJRT interface; 0.57 or a later 0.x is needed")
        };
        assert_eq!(message((0, 56)), expected("0.56"));
        assert_eq!(message((1, 60)), expected("1.60"));
    }

    #[test]
    fn table_without_a_function_is_an_error() {
        for functions in [0, 3, 4, 8] {
            let e = Plugin::new(empty_table((0, 57), functions), Path::new("small.so")).unwrap_err();
            assert_eq!(
                (e.kind(), e.to_string().as_str()),
                (
                    ErrorKind::Device,
                    "cannot initialise `small.so`: the plugin lacks the function PJRT_Plugin_Initialize"
                )
            );
        }
    }
}
