"""Architectures of torchvision, transformers and timm in small sizes, with random weights, and inputs of two sizes each.

An entry of `ARCHITECTURES` makes a module, its inputs for a size of 0 or 1, and the names of their dimensions that are open.
"""

import timm
import torch
import torchvision
import transformers
from torch import nn


def images(side, step, channels=3, batch=2):
    """A batch of images, whose height and width are open unless `step` is 0."""

    def inputs(size):
        height, width = side + step * size, side + 2 * step * size
        return [torch.rand(batch + size, channels, height, width)]

    dims = {0: "batch"} if step == 0 else {0: "batch", 2: "height", 3: "width"}
    return inputs, [dims]


def words(vocabulary=99, masks=1, lengths=(7, 12)):
    """Numbers of tokens, and a mask with ones, with an open length."""

    def inputs(size):
        shape = (2 + size, lengths[size])
        return [torch.randint(3, vocabulary, shape)] + [torch.ones(shape, dtype=torch.long)] * masks

    return inputs, [{0: "batch", 1: "length"}] * (1 + masks)


def pairs():
    """Tokens of two sequences: those that are read, and those that are written."""

    def inputs(size):
        return [torch.randint(3, 99, (2 + size, length + 3 * size)) for length in (7, 5)]

    return inputs, [{0: "batch", 1: "source"}, {0: "batch", 1: "target"}]


def features(width, lengths=(24, 40), channels_first=False):
    def inputs(size):
        length = lengths[size]
        return [torch.randn(2 + size, width, length) if channels_first else torch.randn(2 + size, length, width)]

    return inputs, [{0: "batch", 2 if channels_first else 1: "length"}]


def waves():
    return lambda size: [torch.randn(2 + size, 2000 + 640 * size)], [{0: "batch", 1: "samples"}]


class Output(nn.Module):
    """A module of transformers that returns one of its outputs."""

    def __init__(self, model, *names, output=0):
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs):
        outputs = self.model(**dict(zip(self.names, inputs)), return_dict=False)
        return outputs[self.output]


def vision(name, side, step, **options):
    def make():
        model = torchvision.models.get_model(name, weights=None, **options)
        return Dictionary(model) if "fcn" in name or "deeplab" in name or "lraspp" in name else model

    return make, *images(side, step)


def timm_image(name, side, step=0, **options):
    return lambda: timm.create_model(name, num_classes=10, **options), *images(side, step)


class Dictionary(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)["out"]


SIZES = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37)


def text(kind, masks=1, head="AutoModel", names=("input_ids", "attention_mask"), **options):
    def make():
        config = transformers.AutoConfig.for_model(kind, **(SIZES | options))
        config.use_cache = False
        return Output(getattr(transformers, head).from_config(config), *names[: 1 + masks])

    return make, *words(masks=masks)


def decoder(kind, **options):
    return text(kind, head="AutoModelForCausalLM", **options)


def configured(kind, inputs, *names, head="AutoModel", **options):
    def make():
        config = transformers.AutoConfig.for_model(kind, **options)
        config.use_cache = False
        return Output(getattr(transformers, head).from_config(config), *names)

    return make, *inputs


class Recogniser(nn.Module):
    """Convolutions, recurrent layers in both directions, and a head for CTC."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d((2, 1))
        )
        self.lstm = nn.LSTM(16 * 8, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 11)

    def forward(self, x):
        x = self.convolutions(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.lstm(x)[0]).log_softmax(-1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.table, self.layers = nn.Embedding(99, 16), kind(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens))[0][:, -1])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def block(channels, out):
            return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())

        self.down, self.middle = block(3, 16), block(16, 32)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 2, 1)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        skip = self.down(x)
        low = self.middle(nn.functional.avg_pool2d(skip, 2))
        sequence = low.flatten(2).transpose(1, 2)
        sequence = sequence + self.attention(sequence, sequence, sequence, need_weights=False)[0]
        low = sequence.transpose(1, 2).reshape(low.shape)
        up = nn.functional.interpolate(self.up(low), size=skip.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([skip, up], 1))


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


PATCHES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, image_size=32, patch_size=8)

ARCHITECTURES = {
    "alexnet": vision("alexnet", 96, 32),
    "resnet18": vision("resnet18", 64, 32),
    "resnext50": vision("resnext50_32x4d", 32, 32),
    "densenet121": vision("densenet121", 32, 32),
    "googlenet": vision("googlenet", 96, 32, init_weights=False, aux_logits=False),
    "inception_v3": vision("inception_v3", 107, 32, init_weights=False, aux_logits=False),
    "mobilenet_v2": vision("mobilenet_v2", 64, 32),
    "mobilenet_v3_small": vision("mobilenet_v3_small", 64, 32),
    "mnasnet0_5": vision("mnasnet0_5", 64, 32),
    "shufflenet_v2": vision("shufflenet_v2_x0_5", 64, 32),
    "squeezenet": vision("squeezenet1_1", 64, 32),
    "efficientnet_b0": vision("efficientnet_b0", 64, 32),
    "regnet_y": vision("regnet_y_400mf", 64, 32),
    "efficientnet_v2_s": vision("efficientnet_v2_s", 64, 32),
    "convnext_tiny": vision("convnext_tiny", 64, 32),
    "vit_b_16": vision("vit_b_16", 32, 0, image_size=32),
    "swin_t": vision("swin_t", 64, 0),
    "swin_v2_t": vision("swin_v2_t", 64, 0),
    "fcn_resnet50": vision("fcn_resnet50", 64, 32, weights_backbone=None),
    "deeplabv3_mobilenet": vision("deeplabv3_mobilenet_v3_large", 64, 32, weights_backbone=None),
    "lraspp_mobilenet": vision("lraspp_mobilenet_v3_large", 64, 32, weights_backbone=None),
    "r3d_18": (
        lambda: torchvision.models.get_model("r3d_18", weights=None),
        lambda size: [torch.rand(1 + size, 3, 8, 48 + 16 * size, 48)],
        [{0: "batch", 3: "height", 4: "width"}],
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), *words(masks=0)),
    "gru": (lambda: Recurrent(nn.GRU), *words(masks=0)),
    "recogniser": (Recogniser, lambda size: [torch.rand(2 + size, 1, 32, 24 + 8 * size)], [{0: "batch", 3: "width"}]),
    "unet": (UNet, *images(16, 8)),
    "generator": (generator, lambda size: [torch.randn(2 + size, 16, 1, 1)], [{0: "batch"}]),
    "transformer_encoder": (encoder, *features(32, (7, 12))),
    "gpt2": decoder("gpt2"),
    "llama": decoder("llama", num_key_value_heads=2),
    "qwen2": decoder("qwen2", num_key_value_heads=2),
    "qwen3": decoder("qwen3", num_key_value_heads=2, head_dim=8),
    "mistral": decoder("mistral", num_key_value_heads=2),
    "gemma": decoder("gemma", num_key_value_heads=2, head_dim=8),
    "phi": decoder("phi"),
    "opt": decoder("opt", ffn_dim=37, word_embed_proj_dim=32),
    "mixtral": decoder("mixtral", num_key_value_heads=2, num_local_experts=4, experts_implementation="batched_mm"),
    "gpt_neox": decoder("gpt_neox"),
    "bloom": decoder("bloom", n_layer=2, n_head=4),
    "falcon": decoder("falcon"),
    "bert": text("bert"),
    "roberta": text("roberta"),
    "distilbert": text("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=37),
    "albert": text("albert", embedding_size=16),
    "electra": text("electra", embedding_size=16),
    "deberta_v2": text("deberta-v2"),
    "modernbert": text("modernbert", intermediate_size=40, pad_token_id=0, cls_token_id=1, sep_token_id=2),
    "mpnet": text("mpnet"),
    "mt5_encoder": (
        lambda: Output(
            transformers.MT5EncoderModel(
                transformers.MT5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
            ),
            "input_ids", "attention_mask",
        ),
        *words(),
    ),
    "xlnet": text("xlnet", d_model=32, n_layer=2, n_head=4, d_inner=37),
    "t5": configured(
        "t5", pairs(), "input_ids", "decoder_input_ids",
        vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4,
    ),
    "bart": configured(
        "bart", pairs(), "input_ids", "decoder_input_ids",
        vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37,
    ),
    "vit": configured("vit", images(32, 0), "pixel_values", **PATCHES),
    "deit": configured("deit", images(32, 0), "pixel_values", **PATCHES),
    "beit": configured("beit", images(32, 0), "pixel_values", **PATCHES),
    "dinov2": configured("dinov2", images(32, 0), "pixel_values", **PATCHES),
    "convnextv2": configured("convnextv2", images(64, 32), "pixel_values", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]),
    "segformer": configured(
        "segformer", images(64, 32), "pixel_values", head="AutoModelForSemanticSegmentation",
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
    ),
    "clip_vision": configured("clip_vision_model", images(32, 0), "pixel_values", **PATCHES),
    "clip_text": text("clip_text_model", pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "yolos": configured(
        "yolos", images(32, 0), "pixel_values", head="AutoModelForObjectDetection",
        **(PATCHES | dict(image_size=[32, 32], num_detection_tokens=5)),
    ),
    "mobilevit": configured("mobilevit", images(64, 0), "pixel_values", image_size=64),
    "wav2vec2": configured(
        "wav2vec2", waves(), "input_values", head="AutoModelForCTC",
        vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        conv_dim=[16] * 4, conv_stride=[5, 2, 2, 2], conv_kernel=[10, 3, 3, 2], num_feat_extract_layers=4,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    ),
    "whisper_encoder": (
        lambda: Output(
            transformers.WhisperModel(
                transformers.WhisperConfig(
                    vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                    decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37, num_mel_bins=8,
                    max_source_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                )
            ).encoder,
            "input_features",
        ),
        lambda size: [torch.randn(2 + size, 8, 40)],
        [{0: "batch"}],
    ),
    "timm_botnet": timm_image("botnet26t_256", 64, img_size=64),
    "timm_cait": timm_image("cait_xxs24_224", 32, img_size=32, depth=2),
    "timm_coat": timm_image("coat_lite_tiny", 32, img_size=32),
    "timm_convit": timm_image("convit_tiny", 32, img_size=32, depth=2),
    "timm_davit": timm_image("davit_tiny", 64, embed_dims=(16, 16, 32, 32), num_heads=(1, 1, 2, 2)),
    "timm_dla": timm_image("dla34", 64, 32),
    "timm_edgenext": timm_image("edgenext_xx_small", 64),
    "timm_eva02": timm_image("eva02_tiny_patch14_224", 28, img_size=28, depth=2),
    "timm_fastvit": timm_image("fastvit_t8", 64, 32),
    "timm_focalnet": timm_image("focalnet_tiny_srf", 64, 32),
    "timm_ghostnet": timm_image("ghostnet_050", 64, 32),
    "timm_gmlp": timm_image("gmlp_ti16_224", 32, img_size=32),
    "timm_inception_next": timm_image("inception_next_atto", 64, 32),
    "timm_mambaout": timm_image("mambaout_femto", 64, 32),
    "timm_maxvit": timm_image("maxvit_rmlp_pico_rw_256", 64, img_size=64),
    "timm_mixer": timm_image("mixer_s32_224", 64, img_size=64),
    "timm_mobilenetv4": timm_image("mobilenetv4_conv_small_050", 64, 32),
    "timm_nf_regnet": timm_image("nf_regnet_b0", 64, 32),
    "timm_pit": timm_image("pit_ti_224", 64, img_size=64),
    "timm_poolformer": timm_image("poolformer_s12", 64, 32),
    "timm_pvt": timm_image("pvt_v2_b0", 64, 32),
    "timm_repvgg": timm_image("repvgg_a0", 64, 32),
    "timm_resmlp": timm_image("resmlp_12_224", 32, img_size=32),
    "timm_res2net": timm_image("res2net50_14w_8s", 64, 32),
    "timm_sequencer": timm_image("sequencer2d_s", 56, img_size=56),
    "timm_skresnet": timm_image("skresnet18", 64, 32),
    "timm_starnet": timm_image("starnet_s1", 64, 32),
    "timm_twins": timm_image("twins_svt_small", 64, img_size=64),
    "timm_visformer": timm_image("visformer_tiny", 64, img_size=64),
    "timm_volo": timm_image("volo_d1_224", 64, img_size=64),
    "timm_xcit": timm_image("xcit_nano_12_p16_224", 64, 32),
}  # fmt: skip
