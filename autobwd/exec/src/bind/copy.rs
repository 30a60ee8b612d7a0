//! Copies of whole buffers.

use autobwd_core::{
    __private::{AccessMode, Binder, Place},
    Buf, Cx, Kernel, Meta, Result,
};

/// Copies one buffer to another.
pub(crate) struct CopyKernel {
    from: Buf<'static>,
    to: Buf<'static>,
}
impl CopyKernel {
    pub(crate) fn new(meta: &Meta, from: Place, to: Place) -> Result<CopyKernel> {
        let mut binder = Binder::default();
        let instruction =
            CopyKernel { from: binder.input(meta, from, AccessMode::Read)?, to: binder.output(meta, to)? };
        binder.finish()?;
        Ok(instruction)
    }
}
impl Kernel for CopyKernel {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.to.copy_from(&self.from)
    }
}
