"""Made faults of a set: identity (D4), frames (D5), scenes (D6), release (D7), nothing there."""

from __future__ import annotations

from dataclasses import replace

from tests.episodes.checked_sets import (
    BODY,
    SCENE,
    ListSource,
    PaintedFrames,
    recorded,
    with_metadata,
    with_step,
)
from tests.episodes.made_faults import NUM, PLAIN, RECORDED, fault, one_of
from vla_nav.episodes.types import Camera, Episode, Pose

# Identity --------------------------------------------------------------------------------------


@fault("D401")
def episode_id_that_occurs_twice() -> ListSource:
    return one_of(replace(PLAIN[7], episode_id="3"))


@fault("D402")
def episode_under_two_ids() -> ListSource:
    return one_of(replace(PLAIN[3], episode_id="again"))


@fault("D403")
def episode_of_another_split() -> ListSource:
    return one_of(replace(PLAIN[7], split="train"))


@fault("D404", also="D411")
def guide_read_as_a_follower() -> ListSource:
    info = {**PLAIN[7].metadata["info"], "role": "guide"}
    return one_of(with_metadata(replace(PLAIN[7], role="follower"), info=info))


@fault("D411", NUM)
def guides_and_followers() -> ListSource:
    return one_of(replace(PLAIN[7], role="follower"))


@fault("D405")
def english_tag_on_a_hindi_text() -> ListSource:
    text = "\u0926\u0930\u0935\u093e\u091c\u0947 \u092a\u0930 \u0930\u0941\u0915\u093f\u090f"
    about = {"language": "en-IN"}
    return one_of(with_metadata(replace(PLAIN[7], instruction=text), instruction=about))


@fault("D406", NUM)
def two_languages() -> ListSource:
    tags = ["en-IN", "en-US"]
    return ListSource(
        [with_metadata(e, instruction={"language": tags[i % 2]}) for i, e in enumerate(PLAIN)]
    )


@fault("D407")
def instruction_that_is_empty() -> ListSource:
    return one_of(replace(PLAIN[7], instruction=" \n"))


# Frames ----------------------------------------------------------------------------------------


@fault("D501")
def step_without_its_frame() -> ListSource:
    return one_of(with_step(RECORDED[7], 3, frames={}), base=RECORDED)


@fault("D502")
def frame_that_is_not_there() -> ListSource:
    return one_of(with_step(RECORDED[1], 0, frames={"front": "gone.png"}), 1, RECORDED)


@fault("D503")
def offsets_that_overlap() -> ListSource:
    return one_of(recorded(7, first_frame=601), base=RECORDED)


@fault("D504")
def offsets_out_of_order() -> ListSource:
    return one_of(recorded(7, first_frame=90), at=6, base=[*RECORDED[:1], *RECORDED[2:]])


@fault("D505")
def frames_that_go_back() -> ListSource:
    frames = {"front": "videos/front.mp4#700"}
    return one_of(with_step(RECORDED[7], 3, frames=frames), base=RECORDED)


@fault("D506")
def field_of_view_of_180_degrees() -> ListSource:
    wide = replace(BODY, cameras=(Camera("front", 8, 6, 180.0, 1.25),))
    return one_of(replace(RECORDED[7], embodiment=wide), base=RECORDED)


@fault("D507", 7)  # the sampled ones: 0, 1, 2, 3, 5, 9, 17
def frames_of_another_size() -> ListSource:
    return ListSource(RECORDED, frames=PaintedFrames((6, 8)))


@fault("D508", 7)
def frames_of_one_colour() -> ListSource:
    return ListSource(RECORDED, frames=PaintedFrames(is_blank=True))


# Scenes and release ----------------------------------------------------------------------------


@fault("D601")
def scene_that_is_missing() -> ListSource:
    return one_of(replace(PLAIN[7], scene_id="houses/b/b.glb"))


@fault("D603")
def scene_with_a_path_prefix() -> ListSource:
    return one_of(replace(PLAIN[7], scene_id=f"data/scene_datasets/{SCENE}"))


def like_r2r(plain: Episode, off_rad: float) -> Episode:
    pose = Pose.from_yaw(plain.start_pose.position, plain.start_pose.yaw_rad + off_rad)
    metadata = {"info": plain.metadata["info"], "trajectory_id": 3}
    return replace(plain, scene_id="mp3d/a/a.glb", start_pose=pose, metadata=metadata)


@fault("D701", NUM, also="D202 D601")
def headings_that_are_no_multiples_of_30() -> ListSource:
    return ListSource([like_r2r(e, 0.1 + 0.07 * (n % 5)) for n, e in enumerate(PLAIN)])


@fault("D702", also="D202 D601")
def split_that_is_not_complete() -> ListSource:
    made = [replace(like_r2r(e, 0.0), split="val_unseen") for e in PLAIN]
    return ListSource(made, split="val_unseen")


@fault("D002")
def no_episode() -> ListSource:
    return ListSource([])
