//! Convolutions and what is between them, for images with their channels in blocks.

use std::collections::{HashMap, HashSet};

use autobwd::{
    DType, Dims, OpDesc, Result, VarDesc,
    op::CHANNEL_BLOCK,
    operators::Concat,
    program::{Attr, Var},
    tensor::Dim,
};

use super::{
    super::recognise::Uses,
    Frozen,
    convolutions::{ChannelMap, ConstantConvolution, Kind, Tail, channels, function, tail},
    filters::{Filters, packed_bias},
};
use crate::{
    channel_blocks::{
        BlockedConv2d, BlockedConvAttrs, BlockedDepthwiseConv2d, BlockedPool2d, BlockedPoolAttrs,
        BlockedWinogradConv2d, ChannelBlocks, FromChannelBlocks,
    },
    dropout::{DropoutImplementation, DropoutOp},
    norm::DataLayout,
    pool::{Pool2dOp, PoolingType},
    reduce::ReduceMean,
    shape::{Split, Squeeze2, Unsqueeze2},
    windows::{PaddingAlgorithm, Windows},
};

/// The most channels that are planes of their own, rather than a block.
const FEW_CHANNELS: usize = 8;

/// Rewrites the operators of the main block; variables that are fed or fetched stay.
pub(super) fn rewrite(frozen: &mut Frozen<'_>, fed: &[Var], fetched: &[Var]) -> Result<()> {
    let uses = Uses::of(&frozen.program, |var| fetched.contains(&var));
    let ops = frozen.program.root().ops.clone();
    let mut tails: HashMap<usize, (ConstantConvolution, Tail)> = HashMap::new();
    let mut taken: HashSet<usize> = HashSet::new();
    for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.writes().all(|var| uses.is_fixed(var))) {
        let Some(conv) = ConstantConvolution::of(frozen, op).filter(|conv| uses.is_fixed(conv.input)) else {
            continue;
        };
        let (conv, excitation) = conv.with_excitation(frozen, &uses, i);
        taken.extend(excitation);
        let adds = !matches!(conv.kind, Kind::Depthwise);
        let tail = tail(frozen, &uses, &|i| taken.contains(&i), (i, conv.output, conv.dims[0]), adds);
        taken.extend(&tail.ops);
        let last = tail.ops.last().copied().unwrap_or(i);
        tails.insert(last, (conv, tail));
    }
    let mut blocks = Blocks { frozen, ops: vec![], blocked: HashMap::new(), missing: HashSet::new() };
    let mut done: HashSet<usize> = HashSet::new();
    for (i, op) in ops.iter().enumerate() {
        if let Some((conv, tail)) = tails.get(&i) {
            blocks.convolution(conv, tail)?;
        } else if taken.contains(&i) || done.contains(&i) {
            continue;
        } else if op.writes().any(|var| !uses.is_fixed(var)) || op.reads().any(|var| !uses.is_fixed(var)) {
            blocks.keep(op);
        } else if let Some(rest) = blocks.rewritten(&uses, &taken, i, op)? {
            done.extend(rest);
        } else {
            blocks.keep(op);
        }
    }
    let mut shared: Vec<Var> = blocks.missing.iter().copied().filter(|var| uses.is_shared(*var)).collect();
    shared.sort_unstable();
    for var in fetched.iter().chain(&shared) {
        blocks.planes(*var);
    }
    let Blocks { ops, .. } = blocks;
    let root = frozen.program.root_mut();
    root.ops = ops;
    let used: HashSet<Var> = root
        .ops
        .iter()
        .flat_map(|op| op.reads().chain(op.writes()))
        .chain(fed.iter().chain(fetched).copied())
        .collect();
    let inner: HashSet<Var> = frozen.program.blocks()[1..]
        .iter()
        .flat_map(|block| block.ops.iter().flat_map(|op| op.reads().chain(op.writes())))
        .collect();
    let feeds: HashSet<Var> = frozen.program.captures(autobwd::BlockId::ROOT).into_iter().collect();
    let is_used = |var: &Var| used.contains(var) || inner.contains(var) || feeds.contains(var);
    let unused: Vec<Var> = frozen.program.root().vars.keys().copied().filter(|var| !is_used(var)).collect();
    unused.iter().for_each(|var| drop(frozen.program.root_mut().vars.remove(var)));
    Ok(())
}

/// The attributes of a convolution for images in blocks.
fn attrs(windows: &[Windows; 2]) -> BlockedConvAttrs {
    let pair = |of: fn(&Windows) -> usize| windows.iter().map(|w| of(w) as i32).collect::<Vec<_>>();
    let paddings = windows.iter().flat_map(|w| [w.before as i32, w.after as i32]);
    BlockedConvAttrs::default()
        .strides(pair(|w| w.stride))
        .dilations(pair(|w| w.dilation))
        .paddings(paddings.collect::<Vec<_>>())
}

/// The operators that have been rewritten.
struct Blocks<'f, 'a> {
    frozen: &'f mut Frozen<'a>,
    ops: Vec<OpDesc>,
    /// Images in blocks, by the images.
    blocked: HashMap<Var, Var>,
    /// Images that are in blocks only.
    missing: HashSet<Var>,
}

impl Blocks<'_, '_> {
    /// Declares images in blocks.
    fn new_blocks(&mut self, like: Var) -> Var {
        let name = format!("{}@BLOCKS", self.frozen.program.name(like));
        let var = self.frozen.program.fresh(&name);
        let dims = (0..5).map(|_| Dim::UNKNOWN).collect();
        self.frozen.program.root_mut().vars.insert(var, VarDesc::new(DType::F32, dims));
        var
    }

    /// Declares images with the channels of others, and one pixel.
    fn new_images(&mut self, like: Var) -> Var {
        let name = format!("{}@MEAN", self.frozen.program.name(like));
        let var = self.frozen.program.fresh(&name);
        let channels = channels(self.frozen, like).unwrap_or_default();
        let dims = [Dim::UNKNOWN, Dim::from(channels), Dim::from(1), Dim::from(1)];
        let desc = VarDesc::new(DType::F32, dims.into_iter().collect());
        self.frozen.program.root_mut().vars.insert(var, desc);
        var
    }

    /// The images in blocks.
    fn in_blocks(&mut self, images: Var) -> Var {
        if let Some(blocks) = self.blocked.get(&images) {
            return *blocks;
        }
        let out = self.new_blocks(images);
        self.ops.push(ChannelBlocks { x: images, out }.into());
        self.blocked.insert(images, out);
        out
    }

    /// Writes images that are in blocks only.
    fn planes(&mut self, images: Var) {
        if let Some(blocks) = self.blocked.get(&images).copied().filter(|_| self.missing.remove(&images)) {
            let channels = channels(self.frozen, images).unwrap_or_default() as i32;
            self.ops.push(FromChannelBlocks { x: blocks, out: images, channels }.into());
        }
    }

    /// Keeps an operator as it is.
    fn keep(&mut self, op: &OpDesc) {
        let mut read: Vec<Var> = op.reads().collect();
        for block in op.attrs.blocks() {
            read.extend(self.frozen.program.captures(block));
        }
        for var in read {
            self.planes(var);
        }
        self.ops.push(op.clone());
    }

    /// Adds an operator that writes images in blocks.
    fn push(&mut self, images: Var, op: impl FnOnce(Var) -> OpDesc, site: &OpDesc) {
        let out = self.new_blocks(images);
        let op = op(out);
        self.ops.push(OpDesc { site: site.site, ..op });
        self.blocked.insert(images, out);
        self.missing.insert(images);
    }
}

impl Blocks<'_, '_> {
    /// Adds a convolution with what follows it.
    fn convolution(&mut self, conv: &ConstantConvolution, tail: &Tail) -> Result<()> {
        let (kind, windows) = (conv.kind, conv.windows);
        let filters = Filters::scaled(self.frozen, conv, &tail.map)?;
        let name = self.frozen.program.name(conv.filter).to_string();
        let bias = self.frozen.constant(&format!("{name}@BIAS"), packed_bias(&tail.map)?);
        let site = self.frozen.program.root().ops[tail.ops[0]].clone();
        let [_, share, _, _] = filters.dims();
        let is_single = !self.blocked.contains_key(&conv.input)
            && conv.scales.is_none()
            && share <= FEW_CHANNELS
            && channels(self.frozen, conv.input) == Some(share)
            && matches!(kind, Kind::Direct(_));
        let input = if is_single { conv.input } else { self.in_blocks(conv.input) };
        let scales = conv.scales.map(|scales| self.in_blocks(scales));
        let residual = tail.residual.map(|residual| self.in_blocks(residual));
        let (attrs, activation) = (attrs(&windows), tail.activation.clone());
        let packed = match kind {
            Kind::Depthwise => filters.packed_depthwise(),
            Kind::Winograd => filters.at_points(),
            Kind::Direct(groups) => filters.packed(groups, is_single),
        }?;
        let filter = self.frozen.constant(&format!("{name}@BLOCKS"), packed);
        // Channels of the last block, which several groups may share.
        let rest = channels(self.frozen, conv.input).unwrap_or_default() % CHANNEL_BLOCK;
        let op = |output: Var| -> OpDesc {
            match kind {
                Kind::Depthwise => {
                    BlockedDepthwiseConv2d { input, filter, bias, output, conv: attrs, activation }.into()
                }
                Kind::Winograd => {
                    let paddings = attrs.paddings;
                    BlockedWinogradConv2d { input, filter, bias, residual, output, paddings, activation }
                        .into()
                }
                Kind::Direct(groups) => {
                    let groups = groups.blocks as i32;
                    let conv = attrs;
                    let last_channels = if groups == 1 && rest > 0 { rest } else { CHANNEL_BLOCK } as i32;
                    BlockedConv2d {
                        input,
                        filter,
                        bias,
                        scales,
                        residual,
                        output,
                        conv,
                        groups,
                        last_channels,
                        activation,
                    }
                    .into()
                }
            }
        };
        self.push(tail.output, op, &site);
        Ok(())
    }

    /// Adds an operator on images in blocks in place of one on images, if there is one. Returns further operators that it
    /// replaces.
    fn rewritten(
        &mut self,
        uses: &Uses,
        taken: &HashSet<usize>,
        i: usize,
        op: &OpDesc,
    ) -> Result<Option<Vec<usize>>> {
        if !op.reads().any(|var| self.blocked.contains_key(&var)) {
            return Ok(None);
        }
        if let Some(pool) = op.as_op::<Pool2dOp>() {
            return Ok(self.pool(op, &pool));
        }
        if let Some(mean) = op.as_op::<ReduceMean>() {
            return Ok(self.mean(uses, op, &mean));
        }
        if let Some(concat) = op.as_op::<Concat>() {
            return Ok(self.concat(op, &concat));
        }
        if let Some(split) = op.as_op::<Split>() {
            return Ok(self.split(op, &split));
        }
        let reads: Vec<Var> = op.reads().collect();
        if let [x] = reads[..]
            && channels(self.frozen, x).is_some()
        {
            return Ok(self.unary(uses, op));
        }
        // A map of channels, with what follows it.
        let images: Vec<Var> =
            reads.iter().copied().filter(|var| self.frozen.value(*var).is_none()).collect();
        if let [x] = images[..]
            && let Some(channels) = channels(self.frozen, x)
        {
            let mut map = ChannelMap::identity(channels);
            let Some(output) = map.follow(self.frozen, uses, op, x) else { return Ok(None) };
            let mut tail = tail(self.frozen, uses, &|i| taken.contains(&i), (i, output, channels), false);
            let ChannelMap { scale, bias } = std::mem::replace(&mut tail.map, map);
            tail.map.then(&scale, &bias);
            let bias = self.frozen.constant(&format!("{}@BIAS", op.ty), packed_bias(&tail.map)?);
            let filters = Filters::of_scales(&tail.map).packed_depthwise()?;
            let filter = self.frozen.constant(&format!("{}@BLOCKS", op.ty), filters);
            let input = self.in_blocks(x);
            let (conv, activation) = (BlockedConvAttrs::default(), tail.activation.clone());
            self.push(
                tail.output,
                |output| BlockedDepthwiseConv2d { input, filter, bias, output, conv, activation }.into(),
                op,
            );
            return Ok(Some(tail.ops));
        }
        Ok(self.binary(op))
    }

    fn pool(&mut self, op: &OpDesc, pool: &Pool2dOp) -> Option<Vec<usize>> {
        let attrs = &pool.pool;
        let is_global = attrs.global_pooling || attrs.adaptive && attrs.ksize == [1, 1];
        let has_padding = attrs.paddings.iter().any(|padding| *padding > 0) || attrs.ceil_mode;
        let is_max = attrs.pooling_type == PoolingType::Max;
        let fits = is_global
            || !attrs.adaptive
                && attrs.padding_algorithm == PaddingAlgorithm::Explicit
                && (is_max || attrs.exclusive || !has_padding);
        if !fits || attrs.data_format != DataLayout::Nchw {
            return None;
        }
        let blocked = BlockedPoolAttrs {
            ksize: if is_global { vec![1, 1] } else { attrs.ksize.clone() },
            strides: if is_global { vec![1, 1] } else { attrs.strides.clone() },
            paddings: if is_global { vec![0, 0] } else { attrs.paddings.clone() },
            pooling_type: attrs.pooling_type,
            ceil_mode: attrs.ceil_mode && !is_global,
            global_pooling: is_global,
        };
        let x = self.in_blocks(pool.x);
        self.push(pool.out, |out| BlockedPool2d { x, out, pool: blocked }.into(), op);
        Some(vec![])
    }

    /// A mean of all rows and columns, with an operator that adds dimensions in their place.
    fn mean(&mut self, uses: &Uses, op: &OpDesc, mean: &ReduceMean) -> Option<Vec<usize>> {
        let attrs = &mean.reduce;
        channels(self.frozen, mean.x)?;
        let mut dims: Vec<i32> = attrs.dim.iter().map(|dim| if *dim < 0 { dim + 4 } else { *dim }).collect();
        dims.sort_unstable();
        if attrs.reduce_all || dims != [2, 3] || attrs.in_dtype.is_some() || attrs.out_dtype.is_some() {
            return None;
        }
        // Dimensions that are dropped may be added again.
        let reader = uses.only_reader(mean.out).filter(|_| !attrs.keep_dim);
        let unsqueeze = reader.and_then(|reader| {
            let op = self.frozen.program.root().ops[reader].as_op::<Unsqueeze2>()?;
            let is_plain = op.axes == [2, 3] && op.axes_tensor.is_none() && uses.is_fixed(op.out);
            is_plain.then_some((op.out, vec![reader]))
        });
        let (out, rest) = match unsqueeze {
            Some(found) => found,
            None if attrs.keep_dim => (mean.out, vec![]),
            None => (self.new_images(mean.x), vec![]),
        };
        channels(self.frozen, out)?;
        let pool = BlockedPoolAttrs {
            ksize: vec![1, 1],
            strides: vec![1, 1],
            paddings: vec![0, 0],
            pooling_type: PoolingType::Avg,
            ceil_mode: false,
            global_pooling: true,
        };
        let x = self.in_blocks(mean.x);
        self.push(out, |out| BlockedPool2d { x, out, pool }.into(), op);
        if rest.is_empty() && !attrs.keep_dim {
            self.planes(out);
            let x_shape = self.frozen.program.fresh("shape");
            self.frozen.program.root_mut().vars.insert(x_shape, VarDesc::new(DType::F32, Dims::default()));
            self.ops.push(Squeeze2 { x: out, out: mean.out, x_shape, axes: vec![2, 3] }.into());
        }
        Some(rest)
    }

    fn concat(&mut self, op: &OpDesc, concat: &Concat) -> Option<Vec<usize>> {
        let (last, others) = concat.x.split_last()?;
        let is_whole = |x: &Var| channels(self.frozen, *x).is_some_and(|n| n.is_multiple_of(CHANNEL_BLOCK));
        let fits = concat.axis == 1 && concat.axis_tensor.is_none() && others.iter().all(is_whole);
        channels(self.frozen, *last).filter(|_| fits)?;
        let parts: Vec<Var> = concat.x.iter().map(|x| self.in_blocks(*x)).collect();
        let blocked = |out: Var| {
            let mut op = op.clone();
            op.inputs.set("X", parts);
            op.outputs.set("Out", [out]);
            op
        };
        self.push(concat.out, blocked, op);
        Some(vec![])
    }

    fn split(&mut self, op: &OpDesc, split: &Split) -> Option<Vec<usize>> {
        let of_parts: Option<Vec<usize>> = split.out.iter().map(|out| channels(self.frozen, *out)).collect();
        let (last, others) = of_parts.as_ref()?.split_last()?;
        let fits = others.iter().all(|n| n.is_multiple_of(CHANNEL_BLOCK));
        if !fits || split.axis != 1 || split.axis_tensor.is_some() || !split.sections_tensor_list.is_empty() {
            return None;
        }
        let sections: Vec<i32> =
            others.iter().chain([last]).map(|n| n.div_ceil(CHANNEL_BLOCK) as i32).collect();
        let x = self.in_blocks(split.x);
        let parts: Vec<Var> = split.out.iter().map(|out| self.new_blocks(*out)).collect();
        let mut blocked = op.clone();
        blocked.inputs.set("X", [x]);
        blocked.outputs.set("Out", parts.clone());
        blocked.attrs.set("sections", Attr::I32s(sections));
        blocked.attrs.set("num", Attr::I32(0));
        self.ops.push(blocked);
        self.missing.extend(&split.out);
        self.blocked.extend(split.out.iter().copied().zip(parts));
        Some(vec![])
    }

    /// An elementwise operator on one tensor that is finite for all numbers: the lanes after the last channel hold what
    /// earlier operators make of zeros.
    fn unary(&mut self, uses: &Uses, op: &OpDesc) -> Option<Vec<usize>> {
        const FINITE: [&str; 11] = [
            "abs", "clip", "dropout", "elu", "gelu", "mish", "scale", "square", "tanh", "assign", "softplus",
        ];
        let x = op.reads().next()?;
        let found = function(op, x).map(|(_, out)| out);
        let out = match (found, op.as_op::<DropoutOp>()) {
            (Some(out), _) => out,
            // Without its mask.
            (None, Some(dropout))
                if dropout.is_test
                    && uses.is_read_by(dropout.mask, |_| false)
                    && dropout.dropout_implementation == DropoutImplementation::UpscaleInTrain =>
            {
                let blocks = self.in_blocks(dropout.x);
                self.blocked.insert(dropout.out, blocks);
                self.missing.insert(dropout.out);
                return Some(vec![]);
            }
            (None, _) if FINITE.contains(&&*op.ty) && op.writes().count() == 1 => op.writes().next()?,
            _ => return None,
        };
        let blocks = self.in_blocks(x);
        let blocked = |out: Var| {
            let mut op = op.clone();
            op.inputs.args_mut().for_each(|var| *var = blocks);
            op.outputs.args_mut().for_each(|var| *var = out);
            op
        };
        self.push(out, blocked, op);
        Some(vec![])
    }

    /// An elementwise operator on two images with the same channels, of the same size or with one pixel.
    fn binary(&mut self, op: &OpDesc) -> Option<Vec<usize>> {
        const FINITE: [&str; 5] =
            ["elementwise_add", "elementwise_mul", "elementwise_sub", "elementwise_max", "elementwise_min"];
        let (&[x], &[y], &[out]) = (op.inputs.get("X"), op.inputs.get("Y"), op.outputs.get("Out")) else {
            return None;
        };
        let same = channels(self.frozen, x)? == channels(self.frozen, y)?;
        let fits = same
            && FINITE.contains(&&*op.ty)
            && op.reads().count() == 2
            && channels(self.frozen, out).is_some();
        if !fits || !matches!(op.attrs.get("axis"), None | Some(Attr::I32(-1))) {
            return None;
        }
        let [x, y] = [x, y].map(|images| self.in_blocks(images));
        let blocked = |out: Var| {
            let mut op = op.clone();
            op.inputs.set("X", [x]);
            op.inputs.set("Y", [y]);
            op.outputs.set("Out", [out]);
            op
        };
        self.push(out, blocked, op);
        Some(vec![])
    }
}
