//! Snapshots of programs under construction, by copy-on-write.

use std::{fmt, ops::Deref, rc::Rc};

use crate::Program;

/// The program of a [`Builder`](super::Builder) at the time [`program`](super::Builder::program) was called; later
/// changes of the builder do not affect it. Taking one copies nothing; the first change after that copies the program
/// once. `clone` makes a [`Program`] of it.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[2]);
/// let before = net.program()?;
/// x.exp();
/// assert_eq!((before.root().ops.len(), net.program()?.root().ops.len()), (0, 1));
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct ProgramSnapshot(pub(super) Rc<Program>);

impl Deref for ProgramSnapshot {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.0
    }
}
impl AsRef<Program> for ProgramSnapshot {
    fn as_ref(&self) -> &Program {
        &self.0
    }
}
impl fmt::Display for ProgramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}
impl fmt::Debug for ProgramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
