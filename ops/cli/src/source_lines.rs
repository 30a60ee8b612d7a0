//! Source lines of operators that a command appends.

use autobwd::{
    Program,
    program::{BlockId, Site},
};

/// Drops the source lines of this binary from a program: they say nothing about the model. Lines that were read from a
/// file stay.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
/// let net = Builder::new();
/// let _ = net.input("x", DType::F32, &[2]).tanh();
/// let mut program = net.program()?.clone();
/// assert!(program.root().ops[0].site.is_some());
/// autobwd_cli::forget_source_lines(&mut program);
/// assert!(program.root().ops[0].site.is_none());
/// # Ok::<(), autobwd::Error>(())
/// ```
pub fn forget_source_lines(program: &mut Program) {
    for block in (0..program.blocks().len()).map(BlockId::new) {
        let ops = program.block_mut(block).map(|block| &mut block.ops);
        for op in ops.into_iter().flatten() {
            op.site = op.site.filter(|site| matches!(site, Site::Loaded(_)));
        }
    }
}
